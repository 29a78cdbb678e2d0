#pragma once

#include <cuda_runtime.h>

/// @file
/// The part of cuBLAS that Rankwise uses: names, signatures and numbers of CUDA 13, products by the CPU's library.

/// Every call's answer.
enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,            ///< all is well
  CUBLAS_STATUS_NOT_INITIALIZED = 1,    ///< no handle
  CUBLAS_STATUS_ALLOC_FAILED = 3,       ///< not enough memory
  CUBLAS_STATUS_INVALID_VALUE = 7,      ///< an argument that cannot be
  CUBLAS_STATUS_EXECUTION_FAILED = 13,  ///< the work could not be launched
  CUBLAS_STATUS_INTERNAL_ERROR = 14,    ///< no other fits
};

/// Whether a matrix is used as it lies there.
enum cublasOperation_t {
  CUBLAS_OP_N = 0,  ///< as it lies there
  CUBLAS_OP_T = 1,  ///< transposed
};

/// How exact products are.
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,         ///< f32 stays f32
  CUBLAS_PEDANTIC_MATH = 2,        ///< no shortcuts at all
  CUBLAS_TF32_TENSOR_OP_MATH = 3,  ///< f32 may be rounded to TF32 (without effect here)
};

struct cublasContext;
/// One user of the library.
using cublasHandle_t = cublasContext*;

/// A handle on the current device.
cublasStatus_t cublasCreate(cublasHandle_t* handle);
/// Gives a handle back when the device's work has ended.
cublasStatus_t cublasDestroy(cublasHandle_t handle);
/// The stream of the calls that follow. The handle's workspace is the library's own again.
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
/// Memory of the device that products may use, 256-byte aligned.
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes);
/// How exact the products are that follow.
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
/// The library's version.
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int* version);
/// A status in words.
const char* cublasGetStatusString(cublasStatus_t status);
/// A status' name.
const char* cublasGetStatusName(cublasStatus_t status);

/// C = alpha op(A) op(B) + beta C in a stream's turn, all column-major.
/// @param m, n, k      op(A) is m x k, op(B) k x n.
/// @param alpha, beta  on the host, read before the call returns. With beta = 0 what C held does not matter.
/// @param lda, ldb, ldc  elements from one column to the next.
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                           int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                           const float* beta, float* c, int ldc);
