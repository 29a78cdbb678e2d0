#include <cblas.h>
#include <cublas_v2.h>
#include <string>

#include "tests/emulated_cuda/streams.hpp"

/// @file
/// cuBLAS: products by the CPU's library, in a stream's turn.

using namespace emulated_cuda;

/// What a handle knows.
struct cublasContext {
  Device* device;                 ///< whose matrices it works on
  cudaStream_t stream = nullptr;  ///< of the calls that follow
};

namespace {

/// One matrix of a product.
struct Matrix {
  const char* name;   // for messages
  const float* data;  // column-major
  int rows;
  int columns;
  int leading;  // elements from one column to the next
};

/// One call of the library, from taking the lock to its answer.
template <class Body>
cublasStatus_t blas_call(const char* name, cublasStatus_t failure, Body body)
{
  const Turn turn;
  if (usable() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (fault_due(name)) return failure;
  if (current_device().error != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  return body();
}

/// Whether all of a matrix is memory of the device; the device is lost if not.
bool is_on_device(Device& device, const Matrix& matrix)
{
  const std::size_t elements =
      static_cast<std::size_t>(matrix.leading) * static_cast<std::size_t>(matrix.columns - 1) +
      static_cast<std::size_t>(matrix.rows);
  if (device.memory.find(matrix.data, elements * sizeof(float)) != nullptr) return true;
  device.lose(cudaErrorIllegalAddress, std::string("cublasSgemm: illegal address: ") + matrix.name +
                                           " is not memory of the device as a whole");
  return false;
}

struct StatusText {
  cublasStatus_t status;
  const char* name;
  const char* words;
};

constexpr StatusText status_texts[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an unsupported value or parameter was passed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
};

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle)
{
  return blas_call("cublasCreate", CUBLAS_STATUS_ALLOC_FAILED, [&] {
    *handle = new cublasContext{&current_device()};
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
  return blas_call("cublasDestroy", CUBLAS_STATUS_NOT_INITIALIZED, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    drain(handle->device);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
  return blas_call("cublasSetStream", CUBLAS_STATUS_NOT_INITIALIZED, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!is_stream(stream, "cublasSetStream")) return CUBLAS_STATUS_INVALID_VALUE;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes)
{
  return blas_call("cublasSetWorkspace", CUBLAS_STATUS_INVALID_VALUE, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0;
    if (!is_aligned || (bytes != 0 && handle->device->memory.find(workspace, bytes) == nullptr))
      return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t)
{
  return blas_call("cublasSetMathMode", CUBLAS_STATUS_INVALID_VALUE,
                   [&] { return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS; });
}

cublasStatus_t cublasGetVersion(cublasHandle_t handle, int* version)
{
  return blas_call("cublasGetVersion", CUBLAS_STATUS_INVALID_VALUE, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    *version = 130000;
    return CUBLAS_STATUS_SUCCESS;
  });
}

const char* cublasGetStatusString(cublasStatus_t status)
{
  for (const StatusText& text : status_texts)
    if (text.status == status) return text.words;
  return "unknown status";
}

const char* cublasGetStatusName(cublasStatus_t status)
{
  for (const StatusText& text : status_texts)
    if (text.status == status) return text.name;
  return "unknown status";
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                           int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                           const float* beta, float* c, int ldc)
{
  return blas_call("cublasSgemm", CUBLAS_STATUS_EXECUTION_FAILED, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!is_stream(handle->stream, "cublasSgemm")) return CUBLAS_STATUS_INVALID_VALUE;
    const bool a_lies = op_a == CUBLAS_OP_N;
    const bool b_lies = op_b == CUBLAS_OP_N;
    const Matrix matrices[] = {{"A", a, a_lies ? m : k, a_lies ? k : m, lda},
                               {"B", b, b_lies ? k : n, b_lies ? n : k, ldb},
                               {"C", c, m, n, ldc}};
    if (m < 0 || n < 0 || k < 0) return CUBLAS_STATUS_INVALID_VALUE;
    for (const Matrix& matrix : matrices)
      if (matrix.leading < std::max(1, matrix.rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
    enqueue(handle->stream,
            {"cublasSgemm", [=, device = handle->device, a_matrix = matrices[0], b_matrix = matrices[1],
                             c_matrix = matrices[2], by = *alpha, keep = *beta] {
               if (!is_on_device(*device, c_matrix)) return true;
               if (k > 0 && (!is_on_device(*device, a_matrix) || !is_on_device(*device, b_matrix))) return true;
               open_device_memory();
               cblas_sgemm(CblasColMajor, a_lies ? CblasNoTrans : CblasTrans, b_lies ? CblasNoTrans : CblasTrans, m,
                           n, k, by, a, lda, b, ldb, keep, c, ldc);
               return true;
             }});
    return CUBLAS_STATUS_SUCCESS;
  });
}
