// Who has read and written a piece of memory, and whether that was ordered before what the running thread does now.
//
// Two threads of a block are ordered by __syncthreads(), two lanes of a warp by a __syncwarp() that names both. Nothing
// else orders: shuffles and votes do not, and blocks run in any order.
#pragma once

#include <cstdint>

namespace emu {

enum class Access { read, write, update };  // update: atomically

class History {
  public:
    History() : is_update_(false), several_updates_(false), several_blocks_(false), several_warps_(false) {}

    // Notes an access of the running thread. Returns the race that it is, null if it is all right; the text lives until
    // the next race.
    const char* note(Access access) {
        return access == Access::read ? note_read() : note_write(access == Access::update);
    }

    bool is_written() const { return write_epoch_ != 0; }

  private:
    const char* note_read();
    const char* note_write(bool atomic);
    bool is_after_updates() const;
    int first_reader() const;

    uint32_t write_epoch_ = 0;  // of the last write; 0 is none
    uint32_t write_clock_ = 0;
    uint32_t read_epoch_ = 0;  // of the last reads; 0 is none since the last write
    uint32_t read_clock_ = 0;
    uint32_t read_lanes_ = 0;
    uint32_t other_block_ = 0;  // an epoch of another block that has read; 0 is none
    uint16_t writer_ = 0;
    uint16_t reader_in_other_block_ = 0;
    uint16_t reader_in_other_warp_ = 0;  // than read_warp_
    uint8_t read_warp_ = 0;
    bool is_update_ : 1;        // the last write
    bool several_updates_ : 1;  // in one epoch, in no order
    bool several_blocks_ : 1;   // have updated
    bool several_warps_ : 1;    // have read in read_epoch_
};

}  // namespace emu
