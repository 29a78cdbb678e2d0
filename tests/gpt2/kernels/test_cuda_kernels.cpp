#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

// Properties that only kernels of a GPU have; test_*_families.cpp compares their results with the reference.

namespace {

CarriedKernels::Make* const all_families[] = {make_cuda_kernels, make_cuda_reference_kernels};

}  // namespace

TEST_CASE("make_cuda_kernels: a stream of the CPU is refused, and so is everything in a build without CUDA")
{
  const std::unique_ptr<Device> cpu = make_cpu_device();
  const std::unique_ptr<Stream> stream = cpu->make_stream();
  MemoryLedger ledger;
  for (CarriedKernels::Make* make : all_families) CHECK_THROWS_AS(make({cpu.get(), &ledger}, *stream), Error);
}

TEST_CASE("make_cuda_kernels: takes gpu_workspace_bytes as workspace and gives them back")
{
  if (test_gpu() == nullptr) return;
  const std::unique_ptr<Stream> stream = test_gpu()->make_stream();
  for (CarriedKernels::Make* make : all_families) {
    MemoryLedger ledger;
    {
      const Kernels kernels = make({test_gpu(), &ledger}, *stream);
      CHECK(ledger.current(Tier::device)[Category::workspace] == gpu_workspace_bytes);
      CHECK(ledger.current(Tier::device).total() == gpu_workspace_bytes);
    }
    CHECK(ledger.current(Tier::device).total() == 0);
  }
}

TEST_CASE("cuda kernels: tensors of f64 are refused before anything is touched")
{
  if (test_gpu() == nullptr) return;
  for (CarriedKernels::Make* make : all_families) {
    Laboratory lab(std::make_unique<CarriedKernels>(make, Surroundings::nothing));
    const Tensor x = lab.filled(DType::f64, {6}, 1), before = lab.copied(x);
    CHECK_THROWS_AS(lab.kernels()->add(x, lab.filled(DType::f64, {6}, 2)), Error);
    CHECK_THROWS_AS(lab.kernels()->maximum(x, lab.filled(DType::f64, {6}, 2)), Error);
    CHECK_THROWS_AS(lab.kernels()->squared_norm(x), Error);
    CHECK_THROWS_AS(lab.kernels()->gelu_backward(x, x, x), Error);
    CHECK(different_bits(x, before) == 0);
  }
}

TEST_CASE("cuda kernels: run in the order of their stream's work")
{
  if (test_gpu() == nullptr) return;
  constexpr std::int64_t n = 5000;
  const std::unique_ptr<Stream> stream = test_gpu()->make_stream();
  MemoryLedger ledger;
  const DeviceMemory gpu{test_gpu(), &ledger}, pinned{&test_gpu()->host_memory(), &ledger, Tier::host};
  for (CarriedKernels::Make* make : all_families) {
    const Kernels kernels = make(gpu, *stream);
    const Buffer here(pinned, Category::staging, DType::f32, {n}, "test data");
    const Buffer there(gpu, Category::workspace, DType::f32, {n}, "test data");
    for (float& value : here.tensor().span<float>()) value = 1.5f;
    stream->copy(there.tensor(), here.tensor());
    for (int i = 0; i < 4; ++i) kernels->add(there.tensor(), there.tensor());
    CHECK(kernels->squared_norm(there.tensor()).value() == n * 24.0 * 24.0);
    CHECK_FALSE(kernels->first_not_finite(there.tensor()));
    stream->copy(here.tensor(), there.tensor());
    stream->synchronise();
    CHECK(values_of(here.tensor()) == std::vector<double>(n, 24));
  }
}

TEST_CASE("make_cuda_tf32_kernels: factors of f32 are rounded to 10 bits, those of bf16 as they are; sums are f32")
{
  if (test_gpu() == nullptr) return;
  constexpr std::int64_t n = 64;
  for (const DType type : {DType::f32, DType::bf16}) {
    Laboratory exact(std::make_unique<CarriedKernels>(make_cuda_kernels, Surroundings::nothing));
    Laboratory rounding(std::make_unique<CarriedKernels>(make_cuda_tf32_kernels, Surroundings::nothing));
    const Tensor a = exact.filled(type, {n, n}, 1), b = exact.filled(type, {n, n}, 2);
    const Tensor wanted = exact.zeros(DType::f32, {n, n}), found = exact.zeros(DType::f32, {n, n});
    const auto multiply = [&](const Kernels& kernels, const Tensor& out) {
      kernels->matmul(Matrix::of(out, n), Matrix::of(a, n), Matrix::of(b, n), SumOrder::sequential(n));
    };
    multiply(exact.kernels(), wanted);
    multiply(rounding.kernels(), found);
    const double largest = n * 2 * 0x1p-11;  // of n products of numbers up to 1, each of two factors rounded
    for (std::int64_t i = 0; i < n * n; ++i)
      CHECK(std::abs(wanted.data<float>()[i] - found.data<float>()[i]) <= static_cast<float>(largest));
    CHECK((different_bits(wanted, found) != 0) == (type == DType::f32));
  }
}

TEST_CASE("cuda kernels: two products that differ in nothing but their addresses")
{
  if (test_gpu() == nullptr) return;
  constexpr std::int64_t n = 8, far = 64;  // elements: the second bias is aligned as the first is
  const std::unique_ptr<Stream> stream = test_gpu()->make_stream();
  MemoryLedger ledger;
  const DeviceMemory gpu{test_gpu(), &ledger};
  const Kernels kernels = make_cuda_kernels(gpu, *stream);
  std::vector<float> biases(2 * far), ones(n * n, 1);
  for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i);
  const Buffer bias(gpu, Category::workspace, DType::f32, {2 * far}, "test data");
  const Buffer factor(gpu, Category::workspace, DType::f32, {n, n}, "test data");
  const Buffer out(gpu, Category::workspace, DType::f32, {n, n}, "test data");
  stream->copy(bias.tensor(), Tensor(std::span(biases), {2 * far}));
  stream->copy(factor.tensor(), Tensor(std::span(ones), {n, n}));
  const Matrix ones_there = Matrix::of(factor.tensor(), n);
  for (const std::int64_t first : {std::int64_t{0}, far}) {
    kernels->matmul(Matrix::of(out.tensor(), n), ones_there, ones_there, SumOrder::sequential(n),
                    bias.tensor().slice({first, n}));
    const std::vector<float> found = to_host<float>(*stream, out.tensor());
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(found[i] == n + biases[static_cast<std::size_t>(first) + i % n]);
  }
}

TEST_CASE("cuda kernels: logits of -infinity add nothing to a sum, though a thread sees no others")
{
  if (test_gpu() == nullptr) return;
  constexpr std::int64_t V = 4096, largest = 5;
  const Kernels kernels(std::make_unique<CarriedKernels>(make_cuda_kernels, Surroundings::nothing));
  for (const DType type : {DType::f32, DType::bf16}) {
    Laboratory lab;
    std::vector<double> values(V, -std::numeric_limits<double>::infinity());
    values[largest] = 2;
    const Tensor logits = lab.zeros(type, {1, V}), targets = lab.zeros(DType::i32, {1});
    assign(logits, values);
    const Tensor maximum = lab.zeros(DType::f32, {1}), sum = lab.zeros(DType::f32, {1});
    kernels->row_statistics(maximum, sum, lab.zeros(DType::f32, {1}), logits, targets, {0, V},
                            SumOrder::split(V, 8));
    CHECK(values_of(maximum) == std::vector<double>{2});
    CHECK(values_of(sum) == std::vector<double>{1});
  }
}

TEST_CASE("cuda kernels: a product of no terms is the bias, or leaves the accumulated value unchanged")
{
  if (test_gpu() == nullptr) return;
  const Kernels kernels(std::make_unique<CarriedKernels>(make_cuda_kernels, Surroundings::nothing));
  for (const DType type : {DType::f32, DType::bf16}) {
    Laboratory lab;
    const Tensor out = lab.filled(type, {3, 9}, 1), before = lab.copied(out), bias = lab.filled(type, {9}, 2);
    const Tensor a(out.raw(), type, {3, 0}), b(out.raw(), type, {0, 9});
    const auto multiply = [&](const Tensor& shift, bool accumulate) {
      kernels->matmul(Matrix::of(out, 3), {a, 3, 0, 1}, {b, 0, 9, 9}, SumOrder::sequential(0), shift, accumulate);
    };
    multiply({}, true);
    CHECK(different_bits(out, before) == 0);
    multiply(bias, false);
    for (std::int64_t i = 0; i < 3; ++i) CHECK(different_bits(out.slice({9 * i, 9}), bias) == 0);
    multiply({}, false);
    CHECK(values_of(out) == std::vector<double>(27));
  }
}
