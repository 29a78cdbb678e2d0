#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "common/error.hpp"
#include "tests/gpt2/kernels/carried.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

// What the kernels of a GPU compute is held against the reference in test_*_families.cpp. Here: what only they have.

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
    std::unique_ptr<Kernels> kernels = make({test_gpu(), &ledger}, *stream);
    CHECK(ledger.current(Tier::device)[Category::workspace] == gpu_workspace_bytes);
    CHECK(ledger.current(Tier::device).total() == gpu_workspace_bytes);
    kernels.reset();
    CHECK(ledger.current(Tier::device).total() == 0);
  }
}

TEST_CASE("cuda kernels: tensors of f64 are refused before anything is touched")
{
  if (test_gpu() == nullptr) return;
  for (CarriedKernels::Make* make : all_families) {
    Laboratory lab(std::make_unique<CarriedKernels>(make, Surroundings::nothing));
    const Tensor x = lab.filled(DType::f64, {6}, 1), before = lab.copied(x);
    CHECK_THROWS_AS(lab.kernels().add(x, lab.filled(DType::f64, {6}, 2)), Error);
    CHECK_THROWS_AS(lab.kernels().squared_norm(x), Error);
    CHECK_THROWS_AS(lab.kernels().gelu_backward(x, x, x), Error);
    CHECK(different_bits(x, before) == 0);
  }
}

TEST_CASE("cuda kernels: run behind the work of their stream, and before what comes after")
{
  if (test_gpu() == nullptr) return;
  constexpr std::int64_t n = 5000;
  const std::unique_ptr<Stream> stream = test_gpu()->make_stream();
  MemoryLedger ledger;
  const DeviceMemory gpu{test_gpu(), &ledger}, pinned{&test_gpu()->host_memory(), &ledger, Tier::host};
  for (CarriedKernels::Make* make : all_families) {
    const std::unique_ptr<Kernels> kernels = make(gpu, *stream);
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
