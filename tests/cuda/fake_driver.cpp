// A libcuda.so for machines without a GPU: two devices with the memory of the host.
//
// It has what cuda.core calls on the way from a fatbin or cubin to a launch, and hands each launch to a function of the
// tests. Which kernels there are is said by the tests too, whatever code is loaded.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNoBinaryForGpu = 209, kInvalidContext = 201, kNotFound = 500;
constexpr int kDevices = 2;
constexpr uint32_t kFatbinMagic = 0xBA55ED50;

struct Kernel {
    std::string name;
    std::string arguments;
    bool from_fatbin;
    unsigned loaded_on;  // a bit a device
};
struct Library {
    std::vector<Kernel> kernels;
};
struct Context {
    int device;
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void* stream;
};

using OnLaunch = int(const char* name, const unsigned* grid, unsigned threads, int device, uintptr_t stream,
                     bool was_loaded, void** values);

Context contexts[kDevices] = {{0}, {1}};
thread_local Context* current = nullptr;
std::vector<Kernel> known;
bool fatbins_have_code = true;
OnLaunch* on_launch = nullptr;

int size_of(char letter) {
    return letter == 'f' ? 4 : 8;
}

int launch(const Kernel* kernel, const unsigned* grid, unsigned threads, void* stream, void** values) {
    if (!current) return kInvalidContext;
    const bool was_loaded = kernel->loaded_on >> current->device & 1;
    return on_launch(kernel->name.c_str(), grid, threads, current->device, reinterpret_cast<uintptr_t>(stream),
                     was_loaded, values);
}

}  // namespace

#define DRIVER extern "C" __attribute__((visibility("default"))) int

DRIVER cuInit(unsigned) {
    return kSuccess;
}
DRIVER cuDriverGetVersion(int* version) {
    *version = 13000;
    return kSuccess;
}
DRIVER cuGetExportTable(const void** table, const void*) {  // NVRTC asks, and does without
    *table = nullptr;
    return kNotFound;
}
DRIVER cuDeviceGetCount(int* count) {
    *count = kDevices;
    return kSuccess;
}
DRIVER cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return kSuccess;
}
DRIVER cuDeviceGetName(char* name, int length, int) {
    strncpy(name, "Fake GPU", length);
    return kSuccess;
}
DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1;  // compute capability 9.0
    return kSuccess;
}
DRIVER cuDevicePrimaryCtxRetain(Context** context, int device) {
    *context = &contexts[device];
    return kSuccess;
}
DRIVER cuDevicePrimaryCtxRelease(int) {
    return kSuccess;
}
DRIVER cuCtxGetCurrent(Context** context) {
    *context = current;
    return kSuccess;
}
DRIVER cuCtxSetCurrent(Context* context) {
    current = context;
    return kSuccess;
}
DRIVER cuCtxGetDevice(int* device) {
    if (!current) return kInvalidContext;
    *device = current->device;
    return kSuccess;
}
DRIVER cuStreamGetCtx(void*, Context** context) {
    *context = current;
    return kSuccess;
}
DRIVER cuLibraryLoadData(Library** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
    uint32_t magic;
    memcpy(&magic, code, sizeof magic);
    *library = new Library{known};
    for (Kernel& kernel : (*library)->kernels) kernel.from_fatbin = magic == kFatbinMagic;
    return kSuccess;
}
DRIVER cuLibraryUnload(Library*) {
    return kSuccess;
}
DRIVER cuLibraryGetKernelCount(unsigned* count, Library* library) {
    *count = static_cast<unsigned>(library->kernels.size());
    return kSuccess;
}
DRIVER cuLibraryEnumerateKernels(Kernel** kernels, unsigned count, Library* library) {
    for (unsigned i = 0; i < count; ++i) kernels[i] = &library->kernels[i];
    return kSuccess;
}
DRIVER cuLibraryGetKernel(Kernel** kernel, Library* library, const char* name) {
    for (Kernel& candidate : library->kernels)
        if (candidate.name == name) {
            *kernel = &candidate;
            return kSuccess;
        }
    return kNotFound;
}
DRIVER cuKernelGetName(const char** name, Kernel* kernel) {
    *name = kernel->name.c_str();
    return kSuccess;
}
DRIVER cuKernelGetFunction(Kernel** function, Kernel* kernel) {
    if (kernel->from_fatbin && !fatbins_have_code) return kNoBinaryForGpu;
    *function = kernel;
    return kSuccess;
}
DRIVER cuFuncLoad(Kernel* function) {
    function->loaded_on |= 1u << current->device;
    return kSuccess;
}
DRIVER cuKernelGetParamInfo(Kernel* kernel, size_t index, size_t* offset, size_t* size) {
    if (index >= kernel->arguments.size()) return kInvalidValue;
    *offset = 0;
    for (size_t i = 0; i <= index; ++i) {
        *size = size_of(kernel->arguments[i]);
        *offset = (*offset + *size - 1) / *size * *size + (i < index ? *size : 0);
    }
    return kSuccess;
}
DRIVER cuLaunchKernel(Kernel* kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                      unsigned, void* stream, void** values, void**) {
    const unsigned grid[] = {x, y, z};
    return launch(kernel, grid, threads, stream, values);
}
DRIVER cuLaunchKernelEx(const LaunchConfig* config, Kernel* kernel, void** values, void**) {
    return launch(kernel, config->grid, config->block[0], config->stream, values);
}
DRIVER cuGetErrorName(int status, const char** name) {
    *name = status == kNoBinaryForGpu ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OF_THE_FAKE_DRIVER";
    return kSuccess;
}
DRIVER cuGetErrorString(int, const char** text) {
    *text = "the fake driver was told to fail";
    return kSuccess;
}
DRIVER cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* found) {
    *function = dlsym(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), name);
    if (!*function && !strcmp(name, "cuGetProcAddress")) *function = reinterpret_cast<void*>(cuGetProcAddress_v2);
    if (found) *found = *function ? 0 : 1;
    return *function ? kSuccess : kNotFound;
}
DRIVER cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// For the tests.
DRIVER fake_kernel(const char* name, const char* arguments) {
    known.push_back({name, arguments, false, 0});
    return kSuccess;
}
DRIVER fake_on_launch(OnLaunch* function) {
    on_launch = function;
    return kSuccess;
}
DRIVER fake_set_device(int device) {
    current = device < 0 ? nullptr : &contexts[device];
    return kSuccess;
}
DRIVER fake_fatbins_have_code(bool have) {
    fatbins_have_code = have;
    return kSuccess;
}
