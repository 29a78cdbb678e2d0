#include <algorithm>
#include <cblas.h>
#include <cstring>
#include <cublasLt.h>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "common/memory/tensor.hpp"
#include "tests/emulated_cuda/streams.hpp"

/// @file
/// cuBLASLt: products by the CPU's library, in a stream's turn. It is as strict as the library is where that depends on
/// more than the sizes: what an algorithm was promised when it was chosen must be true when it is used.

using namespace emulated_cuda;
using rankwise::bf16;

/// State of a handle.
struct cublasLtContext {
  Device* device;  ///< whose matrices it works on
};
/// Description of a product.
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cublasOperation_t a_operation = CUBLAS_OP_N;
  cublasOperation_t b_operation = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_leading = 0;
};
/// The layout of a matrix in memory.
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t leading;

  /// Bytes of an element.
  std::size_t width() const { return type == CUDA_R_16BF ? sizeof(bf16) : sizeof(float); }
  /// Bytes from the first element to behind the last.
  std::size_t bytes() const { return static_cast<std::size_t>(leading * (columns - 1) + rows) * width(); }
  bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
/// The properties on which the choice of an algorithm may depend.
struct cublasLtMatmulPreferenceOpaque_t {
  std::size_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = 7;
  std::uint32_t alignments[4] = {256, 256, 256, 256};  // of A, B, C, D
};

namespace {

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

/// A call that makes something.
template <class T, class Make>
cublasStatus_t creation(const char* name, T** made, Make make)
{
  return blas_call(name, CUBLAS_STATUS_ALLOC_FAILED, [&] {
    *made = new T(make());
    return CUBLAS_STATUS_SUCCESS;
  });
}

/// A call that gives something back, which may be on a lost device.
template <class T>
cublasStatus_t destruction(T* made)
{
  const Turn turn;
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}

/// Copies an attribute if it has as many bytes as it should.
template <class T>
cublasStatus_t take(T& attribute, const void* value, std::size_t bytes)
{
  if (value == nullptr || bytes != sizeof attribute) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
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
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the requested functionality is not supported"},
};

/// One product, with copies of all that describes it.
struct Job {
  cublasLtMatmulDescOpaque_t what;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  bool has_bias() const
  {
    return what.epilogue == CUBLASLT_EPILOGUE_BIAS || what.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_aux() const
  {
    return what.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || what.epilogue == CUBLASLT_EPILOGUE_DGELU;
  }
  std::int64_t terms() const { return what.a_operation == CUBLAS_OP_N ? a.columns : a.rows; }
  /// The layout of the auxiliary matrix in memory.
  cublasLtMatrixLayoutOpaque_t aux() const { return {d.type, d.rows, d.columns, what.aux_leading}; }
};

bool is_aligned(const void* address, std::uint64_t bytes)
{
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

/// The library's checks of a product before it looks for an algorithm.
cublasStatus_t opinion_of(const Job& job)
{
  const bool a_lies = job.what.a_operation == CUBLAS_OP_N, b_lies = job.what.b_operation == CUBLAS_OP_N;
  const bool fits = (a_lies ? job.a.rows : job.a.columns) == job.d.rows &&
                    (b_lies ? job.b.columns : job.b.rows) == job.d.columns &&
                    (b_lies ? job.b.rows : job.b.columns) == job.terms() && job.c.rows == job.d.rows &&
                    job.c.columns == job.d.columns;
  if (!fits || job.d.rows <= 0 || job.d.columns <= 0 || job.terms() <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  for (const auto& matrix : {job.a, job.b, job.c, job.d})
    if (matrix.leading < matrix.rows) return CUBLAS_STATUS_INVALID_VALUE;
  if (job.has_bias() && job.what.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (job.has_aux() &&
      (job.what.aux == nullptr || job.what.aux_leading < job.d.rows || job.what.aux_leading % 8 != 0))
    return CUBLAS_STATUS_INVALID_VALUE;

  const bool all_f32 = job.a.type == CUDA_R_32F && job.d.type == CUDA_R_32F;
  const bool of_bf16 = job.a.type == CUDA_R_16BF && job.what.compute == CUBLAS_COMPUTE_32F;
  if (job.a.type != job.b.type || job.c.type != job.d.type || !(all_f32 || of_bf16))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (job.has_bias() && !is_aligned(job.what.bias, 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (job.has_aux() && (job.d.type != CUDA_R_16BF || !is_aligned(job.what.aux, 16)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// Contents of an algorithm's handle.
struct Algorithm {
  std::uint64_t product;        // a number made of all that describes it
  std::uint64_t alignments[4];  // that it was promised, of A, B, C, D
  std::uint64_t workspace_bytes;
  std::uint64_t unused[2];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

/// A number that is another one for nearly every other product.
std::uint64_t number_of(const Job& job)
{
  std::uint64_t number = 0;
  const auto add = [&](auto value) { number = (number ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15; };
  for (const auto& matrix : {job.a, job.b, job.c, job.d}) {
    add(matrix.type);
    add(matrix.rows);
    add(matrix.columns);
    add(matrix.leading);
  }
  add(job.what.compute);
  add(job.what.a_operation);
  add(job.what.b_operation);
  add(job.what.epilogue);
  add(job.has_aux() ? job.what.aux_leading : 0);
  return number;
}

/// Scratch that a long sum needs.
std::size_t workspace_for(const Job& job)
{
  return job.terms() > 64 ? 4096 : 0;
}

/// An f32 rounded to the 10 bits of TF32.
float to_tf32(float value)
{
  auto word = std::bit_cast<std::uint32_t>(value);
  if ((word & 0x7F800000U) != 0x7F800000U) word = (word + 0x1000U) & 0xFFFFE000U;
  return std::bit_cast<float>(word);
}

/// Element i of some memory.
float element(const void* data, std::int64_t i, cudaDataType_t type)
{
  return type == CUDA_R_16BF ? static_cast<float>(static_cast<const bf16*>(data)[i])
                             : static_cast<const float*>(data)[i];
}

/// Rounds @p value to element i of some memory.
void put(void* data, std::int64_t i, cudaDataType_t type, float value)
{
  if (type == CUDA_R_16BF)
    static_cast<bf16*>(data)[i] = bf16(value);
  else
    static_cast<float*>(data)[i] = value;
}

/// The elements of a factor as they are multiplied, column by column.
std::vector<float> factor(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, cublasComputeType_t compute)
{
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(layout.rows * layout.columns));
  for (std::int64_t j = 0; j < layout.columns; ++j)
    for (std::int64_t i = 0; i < layout.rows; ++i) {
      const float value = element(data, i + j * layout.leading, layout.type);
      values.push_back(compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? to_tf32(value) : value);
    }
  return values;
}

/// tanh(u) of gelu's u = sqrt(2/pi) (x + 0.044715 x^3).
double gelu_tanh(double x)
{
  return std::tanh(std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (x + 0.044715 * x * x * x));
}

float gelu(double x)
{
  return static_cast<float>(0.5 * x * (1 + gelu_tanh(x)));
}

float gelu_slope(double x)
{
  const double t = gelu_tanh(x);
  const double du = std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (1 + 3 * 0.044715 * x * x);
  return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du);
}

/// Applies the epilogue to a sum and to the auxiliary matrix.
float after(const Job& job, float sum, std::int64_t i, std::int64_t j)
{
  if (job.has_bias()) sum += element(job.what.bias, i, job.d.type);
  const std::int64_t place = i + j * job.what.aux_leading;
  if (job.what.epilogue == CUBLASLT_EPILOGUE_DGELU)
    return sum * gelu_slope(static_cast<double>(element(job.what.aux, place, job.d.type)));
  if (job.what.epilogue != CUBLASLT_EPILOGUE_GELU_AUX_BIAS) return sum;
  put(job.what.aux, place, job.d.type, sum);
  return gelu(static_cast<double>(sum));
}

/// The addresses and factors of one call.
struct Arguments {
  float alpha, beta;
  const void *a, *b, *c;
  void* d;
};

/// Whether all of a product is memory of the device; the device is lost if not.
bool is_on_device(Device& device, const Job& job, const Arguments& at)
{
  struct {
    const char* name;
    const void* data;
    std::size_t bytes;
  } const pieces[] = {
      {"A", at.a, job.a.bytes()},
      {"B", at.b, job.b.bytes()},
      {"C", at.c, at.beta != 0 ? job.c.bytes() : 0},
      {"D", at.d, job.d.bytes()},
      {"the bias", job.what.bias, job.has_bias() ? static_cast<std::size_t>(job.d.rows) * job.d.width() : 0},
      {"the auxiliary matrix", job.what.aux, job.has_aux() ? job.aux().bytes() : 0},
  };
  for (const auto& piece : pieces) {
    if (piece.bytes == 0 || device.memory.find(piece.data, piece.bytes) != nullptr) continue;
    device.lose(cudaErrorIllegalAddress, std::string("cublasLtMatmul: illegal address: ") + piece.name +
                                             " is not memory of the device as a whole");
    return false;
  }
  return true;
}

/// Computes all of D.
void multiply(const Job& job, const Arguments& at)
{
  open_device_memory();
  const std::vector<float> a = factor(at.a, job.a, job.what.compute), b = factor(at.b, job.b, job.what.compute);
  std::vector<float> sums(static_cast<std::size_t>(job.d.rows * job.d.columns));
  const auto transposition = [](cublasOperation_t operation) {
    return operation == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
  };
  const auto m = static_cast<int>(job.d.rows), n = static_cast<int>(job.d.columns);
  cblas_sgemm(CblasColMajor, transposition(job.what.a_operation), transposition(job.what.b_operation), m, n,
              static_cast<int>(job.terms()), at.alpha, a.data(), static_cast<int>(job.a.rows), b.data(),
              static_cast<int>(job.b.rows), 0, sums.data(), m);
  for (std::int64_t j = 0; j < job.d.columns; ++j)
    for (std::int64_t i = 0; i < job.d.rows; ++i) {
      float sum = sums[static_cast<std::size_t>(i + j * job.d.rows)];
      if (at.beta != 0) sum += at.beta * element(at.c, i + j * job.c.leading, job.c.type);
      put(at.d, i + j * job.d.leading, job.d.type, after(job, sum, i, j));
    }
}

}  // namespace

std::size_t cublasLtGetVersion()
{
  return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle)
{
  return creation("cublasLtCreate", handle, [] { return cublasLtContext{&current_device()}; });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
  return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : destruction(handle);
}

const char* cublasLtGetStatusString(cublasStatus_t status)
{
  for (const StatusText& text : status_texts)
    if (text.status == status) return text.words;
  return "unknown status";
}

const char* cublasLtGetStatusName(cublasStatus_t status)
{
  for (const StatusText& text : status_texts)
    if (text.status == status) return text.name;
  return "unknown status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return creation("cublasLtMatmulDescCreate", description,
                  [&] { return cublasLtMatmulDescOpaque_t{.compute = compute}; });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
  return destruction(description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t bytes)
{
  return blas_call("cublasLtMatmulDescSetAttribute", CUBLAS_STATUS_INVALID_VALUE, [&] {
    switch (name) {
      case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(description->a_operation, value, bytes);
      case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(description->b_operation, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(description->epilogue, value, bytes);
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(description->bias, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return take(description->aux, value, bytes);
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return take(description->aux_leading, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
  });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading)
{
  return creation("cublasLtMatrixLayoutCreate", layout, [&] {
    return cublasLtMatrixLayoutOpaque_t{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
                                        leading};
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
  return destruction(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference)
{
  return creation("cublasLtMatmulPreferenceCreate", preference, [] { return cublasLtMatmulPreferenceOpaque_t{}; });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
  return destruction(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void* value,
                                                    std::size_t bytes)
{
  return blas_call("cublasLtMatmulPreferenceSetAttribute", CUBLAS_STATUS_INVALID_VALUE, [&] {
    switch (name) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(preference->workspace_bytes, value, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take(preference->reduction_schemes, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take(preference->alignments[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int room,
                                              cublasLtMatmulHeuristicResult_t* results, int* found)
{
  return blas_call("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED, [&] {
    *found = 0;
    if (handle == nullptr || room < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const Job job{*description, *a, *b, *c, *d};
    if (const cublasStatus_t opinion = opinion_of(job); opinion != CUBLAS_STATUS_SUCCESS) return opinion;
    const bool in_parts = (preference->reduction_schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
                          workspace_for(job) <= preference->workspace_bytes;
    Algorithm algorithm{number_of(job), {}, in_parts ? workspace_for(job) : 0, {}};
    std::copy_n(preference->alignments, 4, algorithm.alignments);
    *results = {};
    std::memcpy(&results->algo, &algorithm, sizeof algorithm);
    results->workspaceSize = algorithm.workspace_bytes;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream)
{
  return blas_call("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, [&] {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (algorithm == nullptr || !is_stream(stream, "cublasLtMatmul")) return CUBLAS_STATUS_INVALID_VALUE;
    const Job job{*description, *a_layout, *b_layout, *c_layout, *d_layout};
    if (const cublasStatus_t opinion = opinion_of(job); opinion != CUBLAS_STATUS_SUCCESS) return opinion;
    Algorithm chosen{};
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.product != number_of(job) || workspace_bytes < chosen.workspace_bytes ||
        (workspace_bytes > 0 &&
         (!is_aligned(workspace, 256) || handle->device->memory.find(workspace, workspace_bytes) == nullptr)) ||
        (c == d && !(job.c == job.d)))
      return CUBLAS_STATUS_INVALID_VALUE;
    const Arguments at{*static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b, c, d};
    enqueue(stream, {"cublasLtMatmul", [=, device = handle->device] {
                       if (!is_on_device(*device, job, at)) return true;
                       const void* const matrices[] = {at.a, at.b, at.c, at.d};
                       for (std::size_t i = 0; i < 4; ++i)
                         if (!is_aligned(matrices[i], chosen.alignments[i])) {
                           device->lose(cudaErrorMisalignedAddress,
                                        "cublasLtMatmul: misaligned address: the algorithm was promised more");
                           return true;
                         }
                       multiply(job, at);
                       return true;
                     }});
    return CUBLAS_STATUS_SUCCESS;
  });
}
