#include <cstdlib>
#include <memory>
#include <new>

#include "tests/bench/allocation_count.hpp"
#include "tests/bench/measured_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Everything that a family of kernels computes in one step, in one tensor.
struct Outcome {
  Tensor gradients, tied, parameters;
  double norm, loss;
};

/// A step with dropout, through every kernel of the family.
Outcome step_with(Laboratory& lab)
{
  const TinyModel tiny(lab, tiny_config(2, 2, 16, 16), {DType::f32, 2, 16, 0.1});
  const Kernels& kernels = lab.kernels();
  const MicroBatch batch = tiny.batch(3);
  const LossSum loss = tiny.forward_backward(3);
  forward(tiny.model, tiny.p, tiny.kept, tiny.work, batch);
  tiny.model.head.row_maximum(tiny.kept.head);
  tiny.model.head.row_sum(tiny.kept.head, batch);
  const double loss_by_parts = tiny.model.head.loss(tiny.kept.head, batch).mean();

  kernels->add(tiny.gradients.slice(tiny.table.entries().front().elements), tiny.tied);
  const Tensor m = lab.filled(DType::f32, {tiny.table.elements()}, 1),
               v = lab.filled(DType::f32, {tiny.table.elements()}, 2, 0.4, 0.5);
  kernels->maximum(v, m);
  kernels->adamw(tiny.parameters, m, v, tiny.gradients, {.learning_rate = 1e-2, .weight_decay = 0.1, .number = 3});
  REQUIRE(!kernels->first_not_finite(tiny.parameters));
  return {tiny.gradients, tiny.tied, tiny.parameters, kernels->squared_norm(tiny.gradients).value(),
          loss.mean() + loss_by_parts};
}

/// A stream that has nothing to do, and counts how often it is waited for.
class CountingStream final : public Stream {
 public:
  std::int64_t waits = 0;

  void zero(const Tensor&) override {}
  void copy(const Tensor&, const Tensor&) override {}
  void add(const Tensor&, const Tensor&) override {}
  void synchronise() override { ++waits; }
  Event record() override { return {}; }
  void wait(const Event&) override {}
};

/// n floats whose values do not matter: counts depend on sizes only.
Tensor floats(Laboratory& lab, std::int64_t n)
{
  return lab.filled(DType::f32, {n}, 1);
}

}  // namespace

TEST_CASE("make_measured_kernels: a step has the bits that the measured family gives, and every group its calls")
{
  const bool one_by_one = GENERATE(true, false);  // as on a CPU; as on a GPU, with a stream to wait for
  Laboratory plain;
  CountingStream stream;
  MeasuredGroups measured;
  Laboratory lab(make_measured_kernels(make_reference_kernels(), measured, one_by_one ? nullptr : &stream));

  const Outcome expected = step_with(plain), found = step_with(lab);
  CHECK(different_bits(found.gradients, expected.gradients) == 0);
  CHECK(different_bits(found.tied, expected.tied) == 0);
  CHECK(different_bits(found.parameters, expected.parameters) == 0);
  CHECK(found.norm == expected.norm);
  CHECK(found.loss == expected.loss);
  std::int64_t calls = 0;
  for (int g = 0; g < kernel_group_count; ++g) {
    const auto group = static_cast<KernelGroup>(g);
    CAPTURE(name_of(group), one_by_one);
    const GroupTotal& total = measured.total(group);
    calls += total.calls;
    if (group == (one_by_one ? KernelGroup::matmul_gelu : KernelGroup::gelu)) {
      CHECK(total.calls == 0);
      continue;
    }
    CHECK(total.calls > 0);
    CHECK(total.queued_s > 0);
    CHECK(total.seconds >= total.queued_s);
    CHECK(total.work.bytes > 0);
  }
  CHECK(stream.waits == (one_by_one ? 0 : 2 * calls));
}

TEST_CASE("make_measured_kernels: a product with GELU counts what its two kernels do, but for what lies in between")
{
  constexpr std::int64_t m = 3, n = 5, k = 7;
  Laboratory lab;
  CountingStream stream;
  MeasuredGroups one, two;
  const Tensor bias = floats(lab, n);
  const Matrix x = Matrix::of(floats(lab, m * n), m), y = Matrix::of(floats(lab, m * n), m),
               a = Matrix::of(floats(lab, m * k), m), b = Matrix::of(floats(lab, k * n), k);
  for (const Kernels& kernels :
       {make_measured_kernels(lab.kernels(), one, &stream), make_measured_kernels(lab.kernels(), two)}) {
    kernels->matmul_gelu_forward(y.data, x, a, b, SumOrder::sequential(k), bias);
    kernels->matmul_gelu_backward(y, a, b, SumOrder::sequential(k), x.data);
  }
  const MinimalWork &together = one.total(KernelGroup::matmul_gelu).work,
                    &product = two.total(KernelGroup::matmul).work, &gelu = two.total(KernelGroup::gelu).work;
  CHECK(together.flops == product.flops + gelu.flops);
  // forwards x is not written without bias and read again, backwards the gradient in front of GELU is neither
  CHECK(together.bytes == product.bytes + gelu.bytes - 4 * (2 + 2) * m * n);
}

TEST_CASE("make_measured_kernels: matrix products count 2 m n k, a bias and accumulation m n each")
{
  constexpr std::int64_t m = 3, n = 5, k = 7;
  Laboratory lab;
  MeasuredGroups measured;
  const Kernels kernels = make_measured_kernels(lab.kernels(), measured);
  const Matrix out = Matrix::of(floats(lab, m * n), m), a = Matrix::of(floats(lab, m * k), m),
               b = Matrix::of(floats(lab, n * k), n).transposed();
  const MinimalWork& work = measured.total(KernelGroup::matmul).work;

  kernels->matmul(out, a, b, SumOrder::sequential(k), {}, false);
  CHECK(work.flops == 2 * m * n * k);
  CHECK(work.bytes == 4 * (m * n + m * k + n * k));
  kernels->matmul(out, a, b, SumOrder::sequential(k), floats(lab, n), true);
  CHECK(work.flops == 4 * m * n * k + 2 * m * n);
  CHECK(work.bytes == 4 * (3 * m * n + 2 * m * k + 2 * n * k + n));
}

TEST_CASE("make_measured_kernels: attention counts the pairs that the mask shows, AdamW seven arrays")
{
  constexpr std::int64_t B = 2, T = 6, H = 3, D = 4, n = B * T * H * D;
  Laboratory lab;
  for (const auto& [mask, pairs] : {std::pair(Mask{}, 21), std::pair(Mask{Mask::Kind::full, 0}, 36),
                                    std::pair(Mask{Mask::Kind::prefix, 3}, 24)}) {
    MeasuredGroups measured;
    const Kernels kernels = make_measured_kernels(lab.kernels(), measured);
    const AttentionShape shape{.B = B, .T = T, .heads = {0, H}, .D = D, .mask = mask};
    const Tensor y = floats(lab, n), statistics = lab.zeros(DType::f32, {B, H, T}), qkv = floats(lab, 3 * n);
    const MinimalWork& work = measured.total(KernelGroup::attention).work;
    kernels->attention_forward(y, statistics, qkv, shape, {});
    CHECK(work.flops == 4 * D * B * H * pairs);
    CHECK(work.bytes == 4 * (4 * n + B * H * T));
    kernels->attention_backward(floats(lab, 3 * n), y, y, statistics, qkv, shape, {});
    CHECK(work.flops == 14 * D * B * H * pairs);
  }
  MeasuredGroups measured;
  const Kernels kernels = make_measured_kernels(lab.kernels(), measured);
  constexpr std::int64_t cached = 4, width = H * D;  // two tokens behind four see five and six keys
  kernels->cached_attention_forward(floats(lab, 2 * width), floats(lab, 6 * 2 * width).reshaped({6, 2 * width}),
                                    floats(lab, 2 * 3 * width),
                                    {.B = 1, .T = 2, .heads = {0, H}, .D = D, .mask = {}}, {cached, 2});
  CHECK(measured.total(KernelGroup::attention).work.flops == 4 * width * (5 + 6));
  CHECK(measured.total(KernelGroup::attention).work.bytes == 4 * width * (2 + 2 * 3 + 6 * 2));
  const MinimalWork& work = measured.total(KernelGroup::optimizer).work;
  const Tensor p = floats(lab, n), half = lab.zeros(DType::bf16, {n});
  kernels->adamw(p, p, p, p, {}, {});
  CHECK(work.bytes == 28 * n);
  kernels->adamw(p, p, p, half, {}, half);
  CHECK(work.bytes == (28 + 24 + 2 + 2) * n);
}

TEST_CASE("allocations: every operator new and every malloc is counted")
{
  const AllocationCount before = allocations();
  ::operator delete(::operator new(8));
  ::operator delete[](::operator new[](8));
  ::operator delete(::operator new(8, std::align_val_t(64)), std::align_val_t(64));
  ::operator delete(::operator new(8, std::nothrow));
  const AllocationCount four = allocations() - before;
  CHECK(four.operator_new == 4);
  if (four.malloc < 0) return;  // not the GNU C library, or a sanitizer's
  CHECK(four.malloc == 4);

  void* volatile memory = std::malloc(1);
  memory = std::realloc(memory, 1000);
  std::free(memory);
  memory = std::calloc(1, 1);
  std::free(memory);
  CHECK((allocations() - before).malloc == 7);
  CHECK((allocations() - before).operator_new == 4);
}
