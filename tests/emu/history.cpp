#include "history.h"

#include <algorithm>
#include <string>

#include "block.h"

namespace emu {
namespace {

bool is_of_another_block(uint32_t epoch) {
    return epoch && epoch < block.first_epoch();
}

int warp_of(int number) {
    return number / kLanes;
}

uint32_t clock() {
    return thread->warp->known[thread->lane][thread->lane];
}

// Whether what a thread did at an epoch and a clock comes before what the running thread does now.
bool is_before(uint32_t epoch, int number, uint32_t clock) {
    if (is_of_another_block(epoch)) return false;
    if (epoch < block.epoch() || number == thread->number) return true;
    return warp_of(number) == warp_of(thread->number) && thread->warp->known[thread->lane][number % kLanes] >= clock;
}

const char* race(const char* now, const char* then, uint32_t epoch, int number) {
    static std::string race;
    const bool same_warp = warp_of(number) == warp_of(thread->number);
    race = "race: this thread " + std::string(now) + " what thread " + std::to_string(number);
    if (is_of_another_block(epoch))
        race += " of block " + text(block.index_at(epoch)) + " " + then + ", and blocks run in any order";
    else
        race += std::string(" ") + then + ", without " + (same_warp ? "__syncwarp()" : "__syncthreads()") + " between";
    return race.c_str();
}

}  // namespace

// Of updates in no order only the last one is known.
bool History::is_after_updates() const {
    return several_blocks_ || (several_updates_ && write_epoch_ == block.epoch());
}

int History::first_reader() const {
    return read_warp_ * kLanes + __builtin_ctz(read_lanes_);
}

const char* History::note_read() {
    if (write_epoch_ && (is_after_updates() || !is_before(write_epoch_, writer_, write_clock_)))
        return race("reads", is_update_ ? "has updated" : "has written", write_epoch_, writer_);
    if (is_of_another_block(read_epoch_)) {
        other_block_ = read_epoch_;
        reader_in_other_block_ = static_cast<uint16_t>(first_reader());
    }
    if (read_epoch_ != block.epoch()) {
        read_epoch_ = block.epoch();
        read_lanes_ = 0;
        several_warps_ = false;
    }
    const int warp = warp_of(thread->number);
    if (read_lanes_ && read_warp_ != warp) {
        several_warps_ = true;
        reader_in_other_warp_ = static_cast<uint16_t>(thread->number);
        return nullptr;
    }
    bool all_before = true;  // if so, this read stands for all of them
    for (uint32_t lanes = read_lanes_; lanes && all_before; lanes &= lanes - 1)
        all_before = is_before(read_epoch_, warp * kLanes + __builtin_ctz(lanes), read_clock_);
    if (all_before) read_lanes_ = 0;
    read_clock_ = read_lanes_ ? std::min(read_clock_, clock()) : clock();
    read_lanes_ |= 1u << thread->lane;
    read_warp_ = static_cast<uint8_t>(warp);
    return nullptr;
}

const char* History::note_write(bool is_update) {
    const char* now = is_update ? "updates" : "writes";
    const bool is_ordered = !write_epoch_ || (is_before(write_epoch_, writer_, write_clock_) && !is_after_updates());
    if (!is_ordered && !(is_update && is_update_))
        return race(now, is_update_ ? "has updated" : "has written", write_epoch_, writer_);
    if (read_epoch_) {
        if (other_block_) return race(now, "has read", other_block_, reader_in_other_block_);
        if (is_of_another_block(read_epoch_)) return race(now, "has read", read_epoch_, first_reader());
        if (several_warps_ && read_epoch_ == block.epoch()) {
            const bool is_own_warp = read_warp_ == warp_of(thread->number);
            return race(now, "has read", read_epoch_, is_own_warp ? reader_in_other_warp_ : first_reader());
        }
        for (uint32_t lanes = read_lanes_; lanes; lanes &= lanes - 1) {
            const int reader = read_warp_ * kLanes + __builtin_ctz(lanes);
            if (!is_before(read_epoch_, reader, read_clock_)) return race(now, "has read", read_epoch_, reader);
        }
        read_epoch_ = read_lanes_ = 0;
    }
    several_updates_ = is_update && !is_ordered;
    several_blocks_ = is_update && (several_blocks_ || is_of_another_block(write_epoch_));
    is_update_ = is_update;
    write_epoch_ = block.epoch();
    write_clock_ = clock();
    writer_ = static_cast<uint16_t>(thread->number);
    return nullptr;
}

}  // namespace emu
