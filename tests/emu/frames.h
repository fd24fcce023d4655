// Where in the sources a fault happened.
#pragma once

namespace emu {

// Notes the calls that lead here. tests/emu/emulator.py asks for them to name the line of the kernel.
void note_frames();

}  // namespace emu
