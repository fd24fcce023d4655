// The kernels by name, with their arguments and the number of threads that they are compiled for.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace emu {

struct Export {
    Export(const char* name, std::string arguments, int threads, void (*call)(void** arguments));

    const char* name;
    std::string arguments;  // a letter each, as in runtime/cuda/target.py
    int threads;
    void (*call)(void** arguments);
    const Export* next;
};

template <typename T>
constexpr char letter() {
    if constexpr (std::is_pointer_v<T>) {
        return 'p';
    } else if constexpr (std::is_same_v<T, float>) {
        return 'f';
    } else {
        static_assert(std::is_same_v<T, int64_t>, "arguments of kernels are pointers, int64_t and float");
        return 'i';
    }
}

template <auto kernel>
struct Signature;
template <typename... Arguments, void (*kernel)(Arguments...)>
struct Signature<kernel> {
    static std::string letters() { return {letter<Arguments>()...}; }
    static void call(void** arguments) { call(arguments, std::index_sequence_for<Arguments...>{}); }

  private:
    template <size_t... I>
    static void call([[maybe_unused]] void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<Arguments*>(arguments[I])...);
    }
};

}  // namespace emu

// GQC_GLOBAL leaves the number of threads where the GQC_EXPORT after it finds it: __COUNTER__ counts both.
namespace {
template <int>
constexpr int threads_of_kernel = 0;
}

#define GQC_GLOBAL(threads, ...)                            \
    namespace {                                             \
    template <>                                             \
    constexpr int threads_of_kernel<__COUNTER__> = threads; \
    }                                                       \
    extern "C" void
#define GQC_EXPORT(name) GQC_EXPORT_AS(name, threads_of_kernel<__COUNTER__ - 1>)
#define GQC_EXPORT_AS(name, threads)                                                                 \
    static_assert(threads > 0, "GQC_EXPORT follows right after its kernel");                         \
    static const ::emu::Export gqc_export_##name(#name, ::emu::Signature<&name>::letters(), threads, \
                                                 &::emu::Signature<&name>::call);
