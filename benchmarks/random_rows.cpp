// Reads rows of a table in a given order and does nothing else: the ceiling of what gathers rows in that order.

#include <cstdint>
#include <cstring>

// Gives something that depends on a word of each cache line of each row, so that no line can be left out, or on a byte
// of rows that are shorter than a word. ahead: entries between the row that is read and the one that is asked for.
extern "C" uint64_t random_rows(int64_t threads, const char* table, int64_t bytes, const int32_t* rows, int64_t count,
                                int64_t ahead) {
    constexpr int64_t kLine = 64;
    const bool short_rows = bytes < static_cast<int64_t>(sizeof(uint64_t));
    uint64_t found = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(^ : found)
    for (int64_t p = 0; p < count; ++p) {
        const char* const row = table + rows[p] * bytes;
        const char* const next = table + rows[p + ahead < count ? p + ahead : count - 1] * bytes;
        for (int64_t at = 0; at < bytes; at += kLine) {
            __builtin_prefetch(next + at);
            if (short_rows) {
                found ^= static_cast<uint8_t>(row[at]);
                continue;
            }
            uint64_t word;
            std::memcpy(&word, row + at, sizeof word);
            found ^= word;
        }
    }
    return found;
}
