#include "tests/bench/gpu_rates.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/program/time_ledger.hpp"

namespace rankwise {

double time_calls(Stream& stream, double least_s, const std::function<void()>& call)
{
  constexpr double most_growth = 10, margin = 1.2;
  for (double calls = 1;;) {
    stream.synchronise();
    const Stopwatch clock;
    for (double i = 0; i < calls; ++i) call();
    stream.synchronise();
    const double seconds = clock.seconds();
    if (seconds >= least_s) return seconds / calls;
    calls = std::ceil(calls * std::clamp(margin * least_s / seconds, 2.0, most_growth));
  }
}

void fill_with_noise(Stream& stream, const Tensor& x)
{
  constexpr std::int64_t period = (1 << 20) + 7;  // no multiple of a row
  const std::int64_t n = x.elements();
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> noise(-1, 1);
  std::vector<float> numbers(static_cast<std::size_t>(std::min(n, period)));
  std::generate(numbers.begin(), numbers.end(), [&] { return noise(generator); });
  std::vector<bf16> rounded(numbers.begin(), numbers.end());

  std::int64_t filled = std::min(n, period);
  const bool f32 = x.type() == DType::f32;
  stream.copy(x.slice({0, filled}),
              f32 ? Tensor(std::span(numbers), {filled}) : Tensor(std::span(rounded), {filled}));
  for (; filled < n; filled = std::min(n, 2 * filled))
    stream.copy(x.slice({filled, std::min(filled, n - filled)}), x.slice({0, std::min(filled, n - filled)}));
  stream.synchronise();
}

GpuRates::GpuRates(std::int64_t gemm_size, std::int64_t copy_bytes) : gemm_size_(gemm_size), copy_bytes_(copy_bytes)
{
  const std::int64_t matrices = 3 * gemm_size * gemm_size * bytes_of(DType::f32);
  bytes_ = Buffer(memory_, Category::workspace, DType::u8, {std::max(matrices, 2 * copy_bytes)}, "yardsticks");
}

double GpuRates::matmul_flops(DType type, bool tf32, double least_s) const
{
  const std::int64_t n = gemm_size_, bytes = n * n * bytes_of(type);
  const auto matrix = [&](std::int64_t i) { return Tensor(bytes_.tensor().raw() + i * bytes, type, {n, n}); };
  for (const std::int64_t factor : {1, 2}) fill_with_noise(*stream_, matrix(factor));
  const Matrix out = Matrix::of(matrix(0), n), a = Matrix::of(matrix(1), n), b = Matrix::of(matrix(2), n);
  const Kernels& kernels = tf32 ? tf32_kernels_ : kernels_;
  const auto multiply = [&] { kernels->matmul(out, a, b, SumOrder::sequential(n)); };
  multiply();  // the first call loads the kernel
  const double seconds = time_calls(*stream_, least_s, multiply);
  return 2 * std::pow(static_cast<double>(n), 3) / seconds;
}

double GpuRates::copy_bytes_per_s(double least_s) const
{
  const Tensor original = bytes_.tensor().slice({0, copy_bytes_}),
               copy = bytes_.tensor().slice({copy_bytes_, copy_bytes_});
  const double seconds = time_calls(*stream_, least_s, [&] { stream_->copy(copy, original); });
  return 2 * static_cast<double>(copy_bytes_) / seconds;
}

}  // namespace rankwise
