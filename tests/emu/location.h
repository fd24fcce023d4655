// A place in a kernel's source, taken by a default argument.
#pragma once

#include <cstring>
#include <string>

namespace emu {

struct Location {
    const char* file;
    int line;

    Location(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}

    bool operator==(const Location& other) const {
        return line == other.line && (file == other.file || !std::strcmp(file, other.file));
    }
    bool operator!=(const Location& other) const { return !(*this == other); }

    std::string text() const {
        const char* slash = std::strrchr(file, '/');
        return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
    }
};

}  // namespace emu
