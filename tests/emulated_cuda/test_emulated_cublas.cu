#include <algorithm>
#include <cmath>
#include <vector>

#include "common/memory/tensor.hpp"
#include "tests/catch.hpp"
#include "tests/emulated_cuda/helpers.hpp"

using namespace emulated_cuda;
using rankwise::bf16;

namespace {

/// Requires that a call of cuBLAS succeeded.
void require(cublasStatus_t status)
{
  INFO(cublasLtGetStatusName(status));
  REQUIRE(status == CUBLAS_STATUS_SUCCESS);
}

/// A product of m x k and k x n, column-major, and how it is asked for.
struct Question {
  std::int64_t m = 8, n = 3, k = 4;
  bool a_turned = false, b_turned = false;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_leading = 8;
  std::uint32_t alignment = 4;      // promised of all four matrices
  std::size_t workspace_bytes = 0;  // promised
};

cudaDataType_t type_of(float)
{
  return CUDA_R_32F;
}
cudaDataType_t type_of(bf16)
{
  return CUDA_R_16BF;
}

/// A question put to the library: what it answers, and what it does with the algorithm that it gives.
template <class T, class Out = T>
class Call {
 public:
  explicit Call(const Question& q)
  {
    require(cublasLtCreate(&handle_));
    require(cublasLtMatmulDescCreate(&description_, q.compute, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, q.a_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, q.b_turned ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, q.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, q.bias);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, q.aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, q.aux_leading);
    a_ = layout<T>(q.a_turned ? q.k : q.m, q.a_turned ? q.m : q.k);
    b_ = layout<T>(q.b_turned ? q.n : q.k, q.b_turned ? q.k : q.n);
    d_ = layout<Out>(q.m, q.n);
    require(cublasLtMatmulPreferenceCreate(&preference_));
    require(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &q.workspace_bytes, sizeof q.workspace_bytes));
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      require(cublasLtMatmulPreferenceSetAttribute(preference_, name, &q.alignment, sizeof q.alignment));
    int found = 0;
    answer_ =
        cublasLtMatmulAlgoGetHeuristic(handle_, description_, a_, b_, d_, d_, preference_, 1, &result_, &found);
    CHECK((found == 1) == (answer_ == CUBLAS_STATUS_SUCCESS));
  }
  ~Call()
  {
    for (const cublasLtMatrixLayout_t made : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(made);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(description_);
    cublasLtDestroy(handle_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// The library's status when it was asked for an algorithm.
  cublasStatus_t answer() const { return answer_; }
  /// D = A B + beta D, with the algorithm of @p other.
  cublasStatus_t run(const void* a, const void* b, float beta, Out* d, cudaStream_t stream, const Call& other) const
  {
    const float one = 1;
    return cublasLtMatmul(handle_, description_, &one, a, a_, b, b_, &beta, d, d_, d, d_, &other.result_.algo,
                          nullptr, 0, stream);
  }
  /// The same with its own.
  cublasStatus_t run(const void* a, const void* b, float beta, Out* d, cudaStream_t stream) const
  {
    return run(a, b, beta, d, stream, *this);
  }

 private:
  template <class V>
  void set(cublasLtMatmulDescAttributes_t name, const V& value)
  {
    require(cublasLtMatmulDescSetAttribute(description_, name, &value, sizeof value));
  }
  template <class V>
  static cublasLtMatrixLayout_t layout(std::int64_t rows, std::int64_t columns)
  {
    cublasLtMatrixLayout_t made = nullptr;
    require(cublasLtMatrixLayoutCreate(&made, type_of(V()), static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(columns), rows));
    return made;
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t result_{};
  cublasStatus_t answer_ = CUBLAS_STATUS_SUCCESS;
};

/// first, first + step, ...
template <class T>
std::vector<T> numbers(std::int64_t count, float first, float step)
{
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(T(first + step * static_cast<float>(i)));
  return values;
}

/// Element (i, j) of op(A) op(B).
template <class T>
float sum_of(const std::vector<T>& a, const std::vector<T>& b, const Question& q, std::int64_t i, std::int64_t j)
{
  float sum = 0;
  for (std::int64_t k = 0; k < q.k; ++k)
    sum += static_cast<float>(a[static_cast<std::size_t>(q.a_turned ? k + q.k * i : i + q.m * k)]) *
           static_cast<float>(b[static_cast<std::size_t>(q.b_turned ? j + q.n * k : k + q.k * j)]);
  return sum;
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
double gelu(double x)
{
  return x / 2 * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/// Requires that D = A B + D comes out for all four ways in which the factors may lie.
template <class T, class Out>
void check_products()
{
  const TestStream stream;
  for (const bool a_turned : {false, true})
    for (const bool b_turned : {false, true}) {
      const Question q{.a_turned = a_turned, .b_turned = b_turned, .alignment = 256};
      const std::vector<T> a = numbers<T>(32, 1, 1), b = numbers<T>(12, -5, 1);
      const DeviceArray<T> on_a(a, stream), on_b(b, stream);
      const DeviceArray<Out> on_d(std::vector<Out>(24, Out(1.0f)), stream);
      const Call<T, Out> call(q);
      require(call.run(on_a.data(), on_b.data(), 1, on_d.data(), stream));
      const std::vector<Out> d = on_d.read(stream);
      for (std::int64_t i = 0; i < q.m; ++i)
        for (std::int64_t j = 0; j < q.n; ++j)
          CHECK(static_cast<float>(d[static_cast<std::size_t>(i + q.m * j)]) ==
                static_cast<float>(Out(1 + sum_of(a, b, q, i, j))));
    }
}

}  // namespace

TEST_CASE("cuBLAS: products of all four kinds and of all types, in the stream's turn, rounded once")
{
  check_products<float, float>();
  check_products<bf16, bf16>();
  check_products<bf16, float>();
}

TEST_CASE("cuBLAS: TF32 keeps 10 bits of a factor, if it is asked for")
{
  const TestStream stream;
  const float with_11_bits = 1 + 0x1p-11f + 0x1p-12f, rounded = 1 + 0x1p-10f;
  const DeviceArray<float> a(std::vector<float>{with_11_bits}, stream), b(std::vector<float>{1}, stream), d(1);
  const Call<float> exact({.m = 1, .n = 1, .k = 1});
  const Call<float> tf32({.m = 1, .n = 1, .k = 1, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
  require(exact.run(a.data(), b.data(), 0, d.data(), stream));
  CHECK(d.read(stream)[0] == with_11_bits);
  require(tf32.run(a.data(), b.data(), 0, d.data(), stream));
  CHECK(d.read(stream)[0] == rounded);
}

TEST_CASE("cuBLAS: epilogues work on sums that are not rounded yet")
{
  const TestStream stream;
  const std::vector<bf16> a = numbers<bf16>(32, -0.75f, 0.0625f), b = numbers<bf16>(12, -0.5f, 0.125f);
  const std::vector<bf16> bias = numbers<bf16>(8, -1, 0.3f), inner = numbers<bf16>(24, -2, 0.2f);
  const DeviceArray<bf16> on_a(a, stream), on_b(b, stream), on_bias(bias, stream), aux(24), slope_at(inner, stream);
  const DeviceArray<bf16> shifted(24), bent(24), back(24);
  Question q{.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = on_bias.data()};
  require(Call<bf16>(q).run(on_a.data(), on_b.data(), 0, shifted.data(), stream));
  q.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  q.aux = aux.data();
  require(Call<bf16>(q).run(on_a.data(), on_b.data(), 0, bent.data(), stream));
  q.epilogue = CUBLASLT_EPILOGUE_DGELU;
  q.aux = slope_at.data();
  require(Call<bf16>(q).run(on_a.data(), on_b.data(), 0, back.data(), stream));
  const auto on_host = [&](const DeviceArray<bf16>& x) { return x.read(stream); };
  const std::vector<bf16> d = on_host(shifted), x = on_host(aux), y = on_host(bent), dx = on_host(back);
  for (std::size_t at = 0; at < 24; ++at) {
    const auto i = static_cast<std::int64_t>(at % 8), j = static_cast<std::int64_t>(at / 8);
    const float sum = sum_of(a, b, q, i, j), inside = sum + static_cast<float>(bias[at % 8]);
    CHECK(d[at].bits == bf16(inside).bits);
    CHECK(x[at].bits == bf16(inside).bits);
    CHECK(static_cast<float>(y[at]) == Approx(gelu(static_cast<double>(inside))).epsilon(0x1p-8).margin(1e-6));
    const auto u = static_cast<double>(static_cast<float>(inner[at]));
    const double slope = (gelu(u + 1e-6) - gelu(u - 1e-6)) / 2e-6;
    CHECK(static_cast<float>(dx[at]) == Approx(static_cast<double>(sum) * slope).epsilon(0x1p-8).margin(1e-6));
  }
}

TEST_CASE("cuBLAS: unsupported products are refused before anything is queued")
{
  const DeviceArray<bf16> memory(64);
  Question q{.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = memory.data()};
  CHECK(Call<bf16>(q).answer() == CUBLAS_STATUS_SUCCESS);
  q.bias = memory.data() + 2;
  CHECK(Call<bf16>(q).answer() == CUBLAS_STATUS_NOT_SUPPORTED);  // misaligned
  q = {.epilogue = CUBLASLT_EPILOGUE_DGELU, .aux = memory.data()};
  CHECK(Call<bf16>(q).answer() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call<float>(q).answer() == CUBLAS_STATUS_NOT_SUPPORTED);
  q.aux_leading = 12;
  CHECK(Call<bf16>(q).answer() == CUBLAS_STATUS_INVALID_VALUE);
  q = {.m = 16, .epilogue = CUBLASLT_EPILOGUE_DGELU, .aux = memory.data()};
  CHECK(Call<bf16>(q).answer() == CUBLAS_STATUS_INVALID_VALUE);  // rows that overlap
  CHECK(Call<bf16>({.compute = CUBLAS_COMPUTE_32F_FAST_TF32}).answer() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Call<float, bf16>({}).answer() == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("cuBLAS: an algorithm is valid only for the product, alignment and scratch it was chosen for")
{
  const TestStream stream;
  const DeviceArray<float> a(numbers<float>(512, 0, 1), stream), d(24);
  const Call<float> one({}), other({.a_turned = true}), with_scratch({.k = 65, .workspace_bytes = 1 << 20});
  CHECK(one.run(a.data(), a.data(), 0, d.data(), stream, other) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(with_scratch.run(a.data(), a.data(), 0, d.data(), stream) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(one.run(a.data(), a.data(), 0, d.data(), nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  require(one.run(a.data() + 1, a.data(), 0, d.data(), stream));
  require(cudaStreamSynchronize(stream));
  require(cudaSetDevice(6));
  const TestStream elsewhere;
  const DeviceArray<float> there(numbers<float>(64, 0, 1), elsewhere);
  const Call<float> aligned({.alignment = 16});
  require(aligned.run(there.data() + 1, there.data(), 0, there.data() + 32, elsewhere));
  CHECK(cudaStreamSynchronize(elsewhere) == cudaErrorMisalignedAddress);
  require(cudaSetDevice(0));
  cudaGetLastError();
}

TEST_CASE("cuBLAS: a matrix beyond its allocation loses the device")
{
  require(cudaSetDevice(7));
  const TestStream stream;
  const DeviceArray<float> a(std::vector<float>(32), stream), d(23);
  const Call<float> call({});
  require(call.run(a.data(), a.data(), 0, d.data(), stream));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  require(cudaSetDevice(0));
  cudaGetLastError();
}
