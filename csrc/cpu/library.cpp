// What the library says of itself.

#include <cstdint>

// The arguments for which it was built (csrc/build.py).
extern "C" __attribute__((visibility("default"))) unsigned gqc_interface() {
    return GQC_INTERFACE;
}

#if defined(__x86_64__) && defined(__linux__)
#    include <cstdio>
#    include <cstring>

#    include "cpu/processor.h"
#    include "cpu/self_test.h"

// Null where the compiler did not know the set, or where a lower one's kernel is used.
#    define GQC_DECLARE(isa)                                                     \
        extern "C" __attribute__((weak)) self_test::Qgemm gqc_qgemm_##isa;       \
        extern "C" __attribute__((weak)) self_test::Quantize gqc_quantize_##isa; \
        extern "C" __attribute__((weak)) self_test::Qspmm gqc_qspmm_##isa;       \
        extern "C" __attribute__((weak)) self_test::GatBwd gqc_gat_bwd_##isa
#    define GQC_KERNELS(isa)                                                        \
        self_test::Kernels {                                                        \
            gqc_qgemm_##isa, gqc_quantize_##isa, gqc_qspmm_##isa, gqc_gat_bwd_##isa \
        }
GQC_DECLARE(portable);
GQC_DECLARE(avx2);
GQC_DECLARE(avxvnni);
GQC_DECLARE(avx512);
GQC_DECLARE(amx);
extern "C" __attribute__((weak)) self_test::Mm gqc_mm_amx;

namespace {

class InstructionSets {
  public:
    InstructionSets() {
        using namespace processor;
        if (!admit("avx2", runs_avx2, GQC_KERNELS(avx2))) return;
        admit("avxvnni", runs_avx_vnni, GQC_KERNELS(avxvnni));
        if (admit("avx512", runs_avx512, GQC_KERNELS(avx512))) admit("amx", may_use_tiles, GQC_KERNELS(amx));
    }

    const char* usable() const { return usable_; }
    const char* wrong() const { return wrong_; }

  private:
    bool admit(const char* name, bool (*runs)(), const self_test::Kernels& kernels) {
        if (!kernels.qgemm || !runs()) return false;
        const char* const kernel = self_test::first_wrong(kernels, GQC_KERNELS(portable));
        char* const list = kernel ? wrong_ : usable_;
        const size_t length = std::strlen(list);
        std::snprintf(list + length, sizeof usable_ - length, "%s%s%s%s", length ? " " : "", name, kernel ? ":" : "",
                      kernel ? kernel : "");
        return !kernel;
    }

    char usable_[128] = "portable";
    char wrong_[sizeof usable_] = "";
};

const InstructionSets& instruction_sets() {
    static const InstructionSets found;
    return found;
}

const char* usable_isas() {
    return instruction_sets().usable();
}

const char* wrong_isas() {
    return instruction_sets().wrong();
}

bool multiplies_bf16x3() {
    return gqc_mm_amx && processor::multiplies_bfloat16() && self_test::multiplies_bfloat16(gqc_mm_amx);
}

}  // namespace
#else
namespace {

const char* usable_isas() {
    return "portable";
}

const char* wrong_isas() {
    return "";
}

bool multiplies_bf16x3() {
    return false;
}

}  // namespace
#endif

// The compiled instruction sets that this processor and operating system run, and run rightly, the plainest first.
extern "C" __attribute__((visibility("default"))) const char* gqc_isas() {
    return usable_isas();
}

// Those that they run wrongly, each with a colon and the kernel by which that was found.
extern "C" __attribute__((visibility("default"))) const char* gqc_wrong_isas() {
    return wrong_isas();
}

// Call it only where gqc_isas names amx.
extern "C" __attribute__((visibility("default"))) int gqc_multiplies_bf16x3() {
    static const bool found = multiplies_bf16x3();
    return found;
}
