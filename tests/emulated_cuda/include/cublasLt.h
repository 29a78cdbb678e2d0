#pragma once

#include <cuda_runtime.h>

/// @file
/// The part of cuBLASLt that Rankwise uses: names, signatures and numbers of CUDA 13, products by the CPU's library.

/// Every call's answer.
enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,            ///< all is well
  CUBLAS_STATUS_NOT_INITIALIZED = 1,    ///< no handle
  CUBLAS_STATUS_ALLOC_FAILED = 3,       ///< not enough memory
  CUBLAS_STATUS_INVALID_VALUE = 7,      ///< an argument that cannot be
  CUBLAS_STATUS_EXECUTION_FAILED = 13,  ///< the work could not be launched
  CUBLAS_STATUS_INTERNAL_ERROR = 14,    ///< no other fits
  CUBLAS_STATUS_NOT_SUPPORTED = 15,     ///< possible, but the library does not do it
};

/// Whether a matrix is used as it lies there.
enum cublasOperation_t {
  CUBLAS_OP_N = 0,  ///< as it lies there
  CUBLAS_OP_T = 1,  ///< transposed
};

/// In which type products are added up, and what becomes of their factors.
enum cublasComputeType_t {
  CUBLAS_COMPUTE_32F = 68,            ///< f32
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77,  ///< f32 of factors that are rounded to TF32
};

/// What elements are.
enum cudaDataType_t {
  CUDA_R_32F = 0,    ///< f32
  CUDA_R_16BF = 14,  ///< bf16
};

/// What a product's description says beside its types.
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,                 ///< cublasOperation_t
  CUBLASLT_MATMUL_DESC_TRANSB = 4,                 ///< cublasOperation_t
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,               ///< cublasLtEpilogue_t
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,           ///< one element for each row of D, of its type
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,  ///< a matrix of the size and type of D
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,       ///< int64, its elements from one column to the next
};

/// What becomes of sums before they are stored.
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1,          ///< nothing
  CUBLASLT_EPILOGUE_BIAS = 4,             ///< + bias
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,  ///< + bias, which becomes the auxiliary matrix; then gelu
  CUBLASLT_EPILOGUE_DGELU = 192,          ///< times the slope of gelu at the auxiliary matrix
};

/// How sums that are made in parts may be added up.
enum cublasLtReductionScheme_t {
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,          ///< they are not
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,  ///< in the type of the sums
};

/// The properties on which the choice of an algorithm may depend.
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,    ///< size_t, unless set 0
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,  ///< uint32, unless set all
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,  ///< uint32, unless set 256
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,  ///< uint32, unless set 256
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,  ///< uint32, unless set 256
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,  ///< uint32, unless set 256
};

struct cublasLtContext;
struct cublasLtMatmulDescOpaque_t;
struct cublasLtMatrixLayoutOpaque_t;
struct cublasLtMatmulPreferenceOpaque_t;
/// One user of the library.
using cublasLtHandle_t = cublasLtContext*;
/// Description of a product.
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
/// The layout of a matrix in memory.
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
/// The properties on which the choice of an algorithm may depend.
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

/// How a product is made.
struct cublasLtMatmulAlgo_t {
  std::uint64_t data[8];  ///< for the library only
};

/// An algorithm that was found.
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;  ///< what it is
  std::size_t workspaceSize;  ///< bytes that it needs
  cublasStatus_t state;       ///< CUBLAS_STATUS_SUCCESS if it can be used
  float wavesCount;           ///< how often it fills the device
  int reserved[4];            ///< nothing
};

extern "C" {  // found by name, as the real ones are

/// The version, 10000 times the first number plus 100 times the second: 13.0.
std::size_t cublasLtGetVersion();
/// A handle on the current device.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
/// Destroys a handle; queued work continues.
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
/// A status in words.
const char* cublasLtGetStatusString(cublasStatus_t status);
/// A status' name.
const char* cublasLtGetStatusName(cublasStatus_t status);

/// The description of a product.
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale);
/// Gives it back.
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description);
/// Sets what it says.
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t bytes);

/// A matrix of @p columns columns, each @p leading elements after the one before.
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading);
/// Gives it back.
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);

/// Nothing but what is set unless it is set.
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
/// Gives it back.
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
/// Sets what may be relied on.
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void* value,
                                                    std::size_t bytes);

/// Finds algorithms for a product; at most one here.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int room,
                                              cublasLtMatmulHeuristicResult_t* results, int* found);

/// D = epilogue(alpha op(A) op(B) + beta C) in a stream's turn, all column-major.
/// @param alpha, beta  f32 on the host, read before the call returns. With beta = 0 what C held does not matter.
/// @param algorithm    found for this product.
/// @param workspace    on the device, 256-byte aligned.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream);

}  // extern "C"
