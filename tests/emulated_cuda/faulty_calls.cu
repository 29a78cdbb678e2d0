// A few calls that succeed unless the environment asks for a fault: prints the first that fails, and how.

#include <iostream>

#include "tests/emulated_cuda/helpers.hpp"

namespace {

__global__ void write_value(int* to, int value)
{
  *to = value;
}

/// Prints a call that has failed. @return  whether it has.
bool has_failed(const char* call, const char* error, bool is_success)
{
  if (!is_success) std::cout << call << ": " << error << '\n';
  return !is_success;
}

bool has_failed(const char* call, cudaError_t error)
{
  return has_failed(call, cudaGetErrorName(error), error == cudaSuccess);
}

}  // namespace

int main()
{
  int devices = 0;
  int* first = nullptr;
  int* second = nullptr;
  cudaStream_t stream = nullptr;
  cublasLtHandle_t handle = nullptr;
  if (has_failed("cudaGetDeviceCount", cudaGetDeviceCount(&devices))) return 1;
  if (has_failed("cudaMalloc", cudaMalloc(&first, 1024))) return 1;
  if (has_failed("second cudaMalloc", cudaMalloc(&second, 1024))) return 1;
  if (has_failed("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) return 1;
  if (has_failed("cudaLaunchKernelEx", emulated_cuda::launch_on(stream, 1, 1, 0, write_value, first, 1))) return 1;
  if (has_failed("cudaStreamSynchronize", cudaStreamSynchronize(stream))) return 1;
  const cublasStatus_t status = cublasLtCreate(&handle);
  if (has_failed("cublasLtCreate", cublasLtGetStatusName(status), status == CUBLAS_STATUS_SUCCESS)) return 1;
  std::cout << "all is well\n";
  return 0;
}
