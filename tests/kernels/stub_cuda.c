/* A CUDA driver without a GPU, for Triton's own launcher: every call succeeds, and launches are written to a log.

   A launch is logged as its grid, threads, shared memory, stream, function and number of attributes, 64 bits each, and
   behind them its parameters, byte by byte, by the layout that the test has set for the function. A tensor map holds
   what it was encoded from. Triton launches without Python's lock, so a mutex keeps the launches of threads whole. */
#include "cuda.h"
#include <pthread.h>
#include <string.h>

#define FUNCTIONS 256
#define PARAMETERS 128
#define LAUNCH (128 * 128) /* bytes of one in the log, at most */
static struct { int count; int sizes[PARAMETERS]; } layouts[FUNCTIONS];
static unsigned char text[1 << 20];
static size_t used;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded;

void stub_layout(unsigned long long function, int count, const int *sizes) {
  layouts[function].count = count;
  memcpy(layouts[function].sizes, sizes, count * sizeof(int));
}

size_t stub_read(void *into) {
  pthread_mutex_lock(&log_lock);
  size_t found = used;
  memcpy(into, text, used);
  used = 0;
  pthread_mutex_unlock(&log_lock);
  return found;
}

static void put(const void *bytes, size_t size) {
  memcpy(text + used, bytes, size);
  used += size;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  unsigned long long head[] = {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                               config->sharedMemBytes, (unsigned long long)config->hStream,
                               (unsigned long long)function, config->numAttrs};
  (void)extra;
  pthread_mutex_lock(&log_lock);
  if (layouts[head[6]].count != 0 && used + LAUNCH <= sizeof(text)) {
    put(head, sizeof(head));
    for (int i = 0; i < layouts[head[6]].count; ++i)
      put(parameters[i], layouts[head[6]].sizes[i]);
  }
  pthread_mutex_unlock(&log_lock);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  unsigned char *to = memset(map, 0, sizeof(*map));
  (void)steps, (void)interleave, (void)promotion;
  unsigned char small[] = {(unsigned char)type, (unsigned char)rank, (unsigned char)swizzle, (unsigned char)fill};
  memcpy(to, &address, 8);
  memcpy(to + 8, sizes, 8 * rank);
  memcpy(to + 40, strides, 8 * (rank - 1));
  memcpy(to + 72, box, 4 * rank);
  memcpy(to + 88, small, sizeof(small));
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { (void)context; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { (void)limit; *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { (void)limit, (void)value; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)attribute, (void)device;
  *value = 232448; /* bytes of shared memory, the only one that is compared */
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  (void)device;
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function, (void)config;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **string) { (void)error; *string = "stub"; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  (void)image;
  *module = (CUmodule)1;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { (void)module; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module, (void)name;
  *function = (CUfunction)(unsigned long long)(++loaded % FUNCTIONS);
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  (void)attribute;
  memcpy(data, &pointer, sizeof(pointer));
  return CUDA_SUCCESS;
}
