// Threads over the rows of a CSR or CSC matrix.
#pragma once

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// A compressed matrix: entries indptr[v] .. indptr[v + 1] belong to row v.
template <typename Index>
struct Rows {
    const Index* indptr;
    int64_t count;

    int64_t entries() const { return indptr[count]; }
};

// Numbers of an index type that is known only at run time: what reads few of them is compiled once for both types.
class AnyIndices {
  public:
    AnyIndices(const void* numbers, bool is_int64) : numbers_(numbers), is_int64_(is_int64) {}

    int64_t operator[](int64_t i) const {
        return is_int64_ ? static_cast<const int64_t*>(numbers_)[i] : static_cast<const int32_t*>(numbers_)[i];
    }

    // to = numbers first .. last.
    void copy(int64_t first, int64_t last, int64_t* to) const {
        with_type([&](auto* numbers) {
            for (int64_t i = first; i < last; ++i) to[i - first] = numbers[i];
        });
    }

    // Calls body(the numbers as they are), for what reads many of them.
    template <typename Body>
    void with_type(const Body& body) const {
        is_int64_ ? body(static_cast<const int64_t*>(numbers_)) : body(static_cast<const int32_t*>(numbers_));
    }

  private:
    const void* numbers_;
    bool is_int64_;
};

// Calls body(Index()) with the index type of a relation.
template <typename Body>
Error with_index(int64_t is_int64, const Body& body) {
    return is_int64 ? body(int64_t()) : body(int32_t());
}

// First row of part `part` of `parts`: the parts have about the same number of rows and entries together, so neither a
// hub nor a stretch of empty rows makes a part long.
template <typename Index>
int64_t first_row(Rows<Index> rows, int64_t part, int64_t parts) {
    if (part == parts) return rows.count;
    const int64_t target = static_cast<int64_t>(static_cast<double>(rows.entries() + rows.count) / parts * part);
    int64_t low = 0, high = rows.count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (rows.indptr[middle] + middle < target) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Calls body(first, last) on ranges that together are all rows. A row belongs to one range, so the order in which its
// entries are added up does not depend on the number of threads.
template <typename Index, typename Body>
void for_row_ranges(int64_t threads, Rows<Index> rows, int64_t width, const Body& body) {
    const int workers = team(threads, (rows.entries() + rows.count) * width);
    if (workers == 1) return body(int64_t{0}, rows.count);
    const int parts = workers * 16;
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
    for (int part = 0; part < parts; ++part) {
        body(first_row(rows, part, parts), first_row(rows, part + 1, parts));
    }
}

// Raises *value to x; safe from several threads.
inline void raise(int32_t* value, int32_t x) {
    int32_t seen = __atomic_load_n(value, __ATOMIC_RELAXED);
    while (seen < x && !__atomic_compare_exchange_n(value, &seen, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

}  // namespace gqc::GQC_ISA
