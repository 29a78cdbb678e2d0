#include "tests/bench/machine_rates.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <omp.h>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#ifdef RANKWISE_BENCH_ONEDNN
#include <dnnl.hpp>
#endif
#ifdef RANKWISE_BENCH_OPENBLAS
#include <cblas.h>
#endif

#include "common/base/error.hpp"
#include "common/program/time_ledger.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"

namespace rankwise {

namespace {

/// Numbers between -1 and 1 that differ from neighbour to neighbour.
std::vector<float> some_numbers(std::int64_t count)
{
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator
    number = static_cast<float>(state) * 0x1p-31f - 1.0f;
  }
  return numbers;
}

/// A library's square product c = a b.
struct Library {
  std::string name, version;
  std::function<void(std::int64_t size, const float* a, const float* b, float* c)> product;
};

#ifdef RANKWISE_BENCH_ONEDNN

/// oneDNN's product of bf16, for factors and a result in the layout that it likes best.
class LibraryProduct {
 public:
  explicit LibraryProduct(std::int64_t n)
  {
    using dnnl::memory;
    const auto any = [n](memory::data_type type) { return memory::desc({n, n}, type, memory::format_tag::any); };
    const memory::desc factor = any(memory::data_type::bf16), result = any(memory::data_type::f32);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc wanted(engine_, factor, factor, result);
#else
    const dnnl::matmul::primitive_desc wanted(dnnl::matmul::desc(factor, factor, result), engine_);
#endif
    multiply_ = dnnl::matmul(wanted);
    memory plain({{n, n}, memory::data_type::f32, memory::format_tag::ab}, engine_);
    std::ranges::copy(some_numbers(n * n), static_cast<float*>(plain.get_data_handle()));
    arguments_ = {{DNNL_ARG_SRC, memory(wanted.src_desc(), engine_)},
                  {DNNL_ARG_WEIGHTS, memory(wanted.weights_desc(), engine_)},
                  {DNNL_ARG_DST, memory(wanted.dst_desc(), engine_)}};
    for (const int factor_of : {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS})
      dnnl::reorder(plain, arguments_.at(factor_of)).execute(stream_, plain, arguments_.at(factor_of));
    stream_.wait();
  }
  void operator()()
  {
    multiply_.execute(stream_, arguments_);
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul multiply_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

#endif

std::vector<Library> libraries()
{
  std::vector<Library> all;
#ifdef RANKWISE_BENCH_ONEDNN
  const dnnl_version_t& version = *dnnl_version();
  all.push_back({"oneDNN", fmt::format("{}.{}.{}", version.major, version.minor, version.patch),
                 [](std::int64_t n, const float* a, const float* b, float* c) {
                   check(dnnl_sgemm('N', 'N', n, n, n, 1.0f, a, n, b, n, 0.0f, c, n) == dnnl_success,
                         "oneDNN refused a matrix product");
                 }});
#endif
#ifdef RANKWISE_BENCH_OPENBLAS
  const std::string configuration = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  const std::size_t first = configuration.find(' ') + 1, end = configuration.find(' ', first);
  all.push_back({"OpenBLAS", configuration.substr(first, end - first),
                 [](std::int64_t size, const float* a, const float* b, float* c) {
                   const auto n = static_cast<blasint>(size);
                   cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
                 }});
#endif
  return all;
}

/// Keeps the compiler from leaving out what computes @p value.
void keep(float value)
{
  volatile float kept = value;
  static_cast<void>(kept);
}

}  // namespace

void set_threads(int threads)
{
  omp_set_num_threads(threads);
#ifdef RANKWISE_BENCH_OPENBLAS
  openblas_set_num_threads(threads);
#endif
}

std::vector<std::string> gemm_libraries()
{
  std::vector<std::string> names;
  for (const Library& library : libraries()) names.push_back(library.name + " " + library.version);
  return names;
}

GemmMeasurement::GemmMeasurement(std::int64_t size)
    : size_(size),
      a_(some_numbers(size * size)),
      b_(some_numbers(size * size)),
      c_(some_numbers(size * size)),
      a_bf16_(a_.begin(), a_.end()),
      b_bf16_(b_.begin(), b_.end())
{
}

std::vector<GemmRate> GemmMeasurement::measure(DType type, double least_s)
{
  std::vector<GemmRate> rates;
  const auto add = [&](const std::string& library, auto&& multiply) {
    std::int64_t products = 0;
    const Stopwatch clock;
    do {
      multiply();
      ++products;
    } while (clock.seconds() < least_s);
    const double seconds = clock.seconds(), n = static_cast<double>(size_);
    rates.push_back({library, type, size_, 2e-9 * n * n * n * static_cast<double>(products) / seconds});
  };
  if (type == DType::f32) {
    for (const Library& library : libraries())
      add(library.name, [&] { library.product(size_, a_.data(), b_.data(), c_.data()); });
    return rates;
  }
  const GemmOperand<bf16> a{a_bf16_.data(), size_}, b{b_bf16_.data(), size_};
  add("own", [&] { gemm(c_.data(), size_, a, b, size_, size_, size_, false); });
#ifdef RANKWISE_BENCH_ONEDNN
  try {
    LibraryProduct product(size_);
    product();  // the first one generates code
    add("oneDNN", product);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;  // it has no product of bf16 for processors without AVX-512
  }
#endif
  return rates;
}

BandwidthMeasurement::BandwidthMeasurement(std::int64_t array_bytes)
    : x_(some_numbers(array_bytes / 4)), y_(x_), z_(x_), w_(x_)
{
}

Bandwidth BandwidthMeasurement::measure()
{
  const std::size_t n = x_.size();
  const auto gigabytes = 4e-9 * static_cast<double>(n);
  float *const x = x_.data(), *const y = y_.data(), *const z = z_.data(), *const w = w_.data();
  Bandwidth bandwidth;

  constexpr std::size_t lanes = 64;  // as many sums as keep the adders busy
  std::array<float, lanes> sums{};
  const Stopwatch read;
  for (std::size_t i = 0; i + lanes <= n; i += lanes)
    for (std::size_t j = 0; j < lanes; ++j) sums[j] += x[i + j];
  bandwidth.read_GBps = gigabytes / read.seconds();
  for (const float sum : sums) keep(sum);

  const Stopwatch triad;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) x[i] = y[i] + 0.5f * z[i];
  bandwidth.triad_GBps = 3 * gigabytes / triad.seconds();

  const Stopwatch update;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    x[i] += 0.5f * w[i];
    y[i] += 0.5f * w[i];
    z[i] += 0.5f * w[i];
  }
  bandwidth.update_GBps = 7 * gigabytes / update.seconds();
  keep(x[n / 2] + y[n / 2] + z[n / 2]);
  return bandwidth;
}

}  // namespace rankwise
