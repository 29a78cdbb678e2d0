#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "gpt2/kernels/cpu/gemm.hpp"
#include "tests/bench/allocation_count.hpp"
#include "tests/bench/measured_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t first_sequence = 3;

/// A model in one family and one type, whose parameters are the same numbers everywhere: of f32, or rounded to bf16.
struct Run {
  Run(Kernels kernels, DType type, const ModelConfig& config, TinyOptions options, DType rounded = DType::f32)
      : lab(std::move(kernels)), tiny(lab, config, (options.type = type, options))
  {
    Laboratory f32;
    const Tensor parameters = f32.zeros(DType::f32, {tiny.table.elements()});
    fill_parameters(parameters, tiny.table);
    assign(tiny.parameters, values_of(f32.converted(parameters, rounded)));
  }
  /// The loss and the gradients of one micro-batch.
  double loss_and_gradients()
  {
    lab.stream().zero(tiny.gradients);
    lab.stream().zero(tiny.tied);
    return tiny.forward_backward(first_sequence).mean();
  }

  Laboratory lab;
  TinyModel tiny;
};

/// Requires that @p found, gradients of @p table, are near @p truth, tensor by tensor; as near as @p reference is.
void check_gradients(const ParameterTable& table, const Tensor& found, const Tensor& reference, const Tensor& truth,
                     Tolerance tolerance = {})
{
  for (const Parameter& p : table.entries()) {
    INFO(p.name);
    const std::int64_t row = p.stored[p.stored.rank() - 1];
    const Output wanted{p.name, truth.slice(p.elements), row};
    const Errors errors = Errors::of({p.name, found.slice(p.elements), row}, wanted);
    const Errors allowed = Errors::of({p.name, reference.slice(p.elements), row}, wanted);
    CHECK(errors.whole <= tolerance.factor * allowed.whole + tolerance.floor);
    CHECK(errors.worst_row <= tolerance.factor * allowed.worst_row + tolerance.floor);
  }
}

/// Holds a model in one type against the reference.
void check_model(const ModelConfig& config, const TinyOptions& options, DType type = DType::f32)
{
  INFO(name_of(type) << ", heads " << config.heads << ", channels " << config.channels << ", " << config.mask.text()
                     << ", B " << options.B << ", T " << options.T << ", dropout " << options.dropout
                     << ", recompute " << options.recompute);
  // In bf16 the floor is one rounding more than the reference makes: of a soft-max weight, for a product of matrices.
  Tolerance tolerance;
  if (type == DType::bf16) tolerance.floor = bf16_rounding;
  Run truth(make_reference_kernels(), DType::f64, config, options, type);
  Run reference(make_reference_kernels(), type, config, options);
  const double loss = truth.loss_and_gradients();
  reference.loss_and_gradients();
  for (const int count : {1, 2, 3}) {
    INFO(count << " threads");
    const Threads threads(count);
    Run cpu(make_cpu_kernels(), type, config, options);
    CHECK(cpu.loss_and_gradients() == Approx(loss).epsilon(type == DType::bf16 ? bf16_rounding : 1e-6));
    check_gradients(cpu.tiny.table, cpu.tiny.gradients, reference.tiny.gradients, truth.tiny.gradients, tolerance);
    CHECK(relative_error(cpu.tiny.tied, truth.tiny.tied) <=
          tolerance.factor * relative_error(reference.tiny.tied, truth.tiny.tied) + tolerance.floor);

    const Tensor before = cpu.lab.copied(cpu.tiny.gradients);
    cpu.loss_and_gradients();
    CHECK(different_bits(cpu.tiny.gradients, before) == 0);
  }
}

/// A whole model's parts, computed one after the other, with the sums that tensor parallelism makes in between.
struct Divided {
  Divided(Laboratory& laboratory, const TinyModel& whole, int n) : lab(laboratory)
  {
    for (int i = 0; i < n; ++i) {
      TinyOptions mine = whole.options;
      mine.part = {i, n};
      parts.push_back(std::make_unique<TinyModel>(lab, whole.model.context.config, mine));
      lab.stream().copy(parts.back()->parameters, part_of(lab, parts.back()->table, whole.table, whole.parameters));
      batches.push_back(parts.back()->batch(first_sequence));
    }
  }

  /// Runs @p stage(part, its micro-batch) for every part.
  template <class Stage>
  void run(const Stage& stage)
  {
    for (std::size_t i = 0; i < parts.size(); ++i) stage(*parts[i], batches[i]);
  }
  /// Adds up what @p which(part) views, and leaves the sum in every part.
  template <class Which>
  void all_reduce(const Which& which)
  {
    for (std::size_t i = 1; i < parts.size(); ++i) lab.kernels()->add(which(*parts[0]), which(*parts[i]));
    for (std::size_t i = 1; i < parts.size(); ++i) lab.stream().copy(which(*parts[i]), which(*parts[0]));
  }
  /// Leaves the largest of all parts' row maxima in every part.
  void all_maximum()
  {
    for (const auto& part : parts)
      for (const auto& other : parts)
        for (std::int64_t r = 0; r < part->kept.head.maximum.elements(); ++r)
          part->kept.head.maximum.data<float>()[r] =
              std::max(part->kept.head.maximum.data<float>()[r], other->kept.head.maximum.data<float>()[r]);
  }

  LossSum forward();
  void backward();

  Laboratory& lab;
  std::vector<std::unique_ptr<TinyModel>> parts;
  std::vector<MicroBatch> batches;
};

const Tensor& output(const TinyModel& m)
{
  return m.work.output;
}

LossSum Divided::forward()
{
  run([](const TinyModel& m, const MicroBatch& b) { m.model.embedding.lookup(output(m), m.p.embedding, b); });
  all_reduce(output);
  run([](const TinyModel& m, const MicroBatch& b) {
    m.model.embedding.add(m.kept.stream(0), output(m), m.p.embedding, b);
  });
  for (std::size_t i = 0; i < parts[0]->model.branches.size(); ++i) {
    run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].normalise(m.kept.branches[i], m.p.branches[i]);
      m.model.branches[i].apply(output(m), m.kept.branches[i], m.p.branches[i], b);
    });
    all_reduce(output);
    run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].add(m.kept.stream(i + 1), m.kept.branches[i], output(m), m.p.branches[i], b);
    });
  }
  run([](const TinyModel& m, const MicroBatch&) {
    m.model.head.normalise(m.kept.head, m.p.head);
    m.model.head.logits(m.kept.head, m.p.head);
    m.model.head.row_maximum(m.kept.head);
  });
  all_maximum();
  run([](const TinyModel& m, const MicroBatch& b) { m.model.head.row_sum(m.kept.head, b); });
  all_reduce([](const TinyModel& m) { return m.kept.head.sum; });
  all_reduce([](const TinyModel& m) { return m.kept.head.target_logit; });
  return parts[0]->model.head.loss(parts[0]->kept.head, batches[0]);
}

void Divided::backward()
{
  run([](const TinyModel& m, const MicroBatch& b) {
    m.lab.stream().zero(m.work.dstream);
    m.model.head.apply_backward(output(m), m.d.head, m.kept.head, m.p.head, b);
  });
  all_reduce(output);
  run([](const TinyModel& m, const MicroBatch& b) {
    m.model.head.normalise_backward(m.work.dstream, m.d.head, output(m), m.kept.head, m.p.head, b);
  });
  for (std::size_t i = parts[0]->model.branches.size(); i-- > 0;) {
    run([&](const TinyModel& m, const MicroBatch& b) {
      const Branch& branch = m.model.branches[i];
      const Tensor doutput = branch.add_backward(m.d.branches[i], m.work.dstream, output(m), b);
      branch.apply_backward(output(m), m.d.branches[i], doutput, m.work.wide, m.kept.branches[i], m.p.branches[i],
                            b);
    });
    all_reduce(output);
    run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].normalise_backward(m.work.dstream, m.d.branches[i], output(m), m.kept.branches[i],
                                             m.p.branches[i], b);
    });
  }
  run([](const TinyModel& m, const MicroBatch& b) {
    m.model.embedding.backward(m.d.embedding, m.work.dstream, b);
  });
}

constexpr Mask masks[] = {{}, {Mask::Kind::prefix, 3}, {Mask::Kind::full, 0}};

}  // namespace

TEST_CASE(
    "cpu forward_backward: loss and gradients are the reference's, for all masks, with dropout and recomputation")
{
  ModelConfig config = tiny_config(2, 3, 24, 37);
  for (const Mask& mask : masks)
    for (const double dropout : {0.0, 0.1})
      for (const bool recompute : {false, true}) {
        config.mask = mask;
        check_model(config, {DType::f32, 3, 13, dropout, {}, recompute});
      }
}

TEST_CASE("cpu forward_backward: loss and gradients are the reference's for odd B, T and heads")
{
  check_model(tiny_config(1, 1, 20, 9), {DType::f32, 1, 1});          // one token
  check_model(tiny_config(1, 1, 20, 9), {DType::f32, 5, 1, 0.1});     // several sequences of one
  check_model(tiny_config(2, 5, 40, 80), {DType::f32, 1, 65, 0.1});   // one more than a block of 64
  check_model(tiny_config(1, 1, 128, 140), {DType::f32, 1, 131});     // one head, D = 128
  check_model(tiny_config(1, 7, 112, 64), {DType::f32, 3, 63, 0.1});  // one less than a block
}

TEST_CASE("cpu forward_backward: loss and gradients in bf16 are as near to the truth as the reference's")
{
  ModelConfig config = tiny_config(2, 3, 24, 37);
  for (const Mask& mask : masks) {
    config.mask = mask;
    check_model(config, {DType::f32, 3, 13, 0.1, {}, mask.kind == Mask::Kind::full}, DType::bf16);
  }
  check_model(tiny_config(1, 1, 20, 9), {DType::f32, 1, 1}, DType::bf16);       // one token
  check_model(tiny_config(2, 5, 40, 80), {DType::f32, 1, 65}, DType::bf16);     // one more than a block of 64
  check_model(tiny_config(1, 1, 128, 140), {DType::f32, 1, 131}, DType::bf16);  // one head, D = 128
}

TEST_CASE("cpu forward_backward: parts of all layers add up to the reference's whole")
{
  for (const int n : {2, 4})
    for (const double dropout : {0.0, 0.2}) {
      INFO(n << " parts, dropout " << dropout);
      const ModelConfig config = tiny_config(2, 4, 32, 17);
      const TinyOptions options{DType::f32, 2, 17, dropout};
      Run truth(make_reference_kernels(), DType::f64, config, options);
      Run reference(make_reference_kernels(), DType::f32, config, options);
      Run whole(make_cpu_kernels(), DType::f32, config, options);
      const double loss = truth.loss_and_gradients();
      reference.loss_and_gradients();

      Divided divided(whole.lab, whole.tiny, n);
      CHECK(divided.forward().mean() == Approx(loss).epsilon(1e-6));
      divided.backward();
      for (const auto& part : divided.parts) {
        const auto mine = [&](const Tensor& gradients) {
          return part_of(whole.lab, part->table, whole.tiny.table, gradients);
        };
        check_gradients(part->table, part->gradients, mine(reference.tiny.gradients), mine(truth.tiny.gradients));
      }
    }
}

namespace {

/// Calls of operator new in the library's product of 64 queries and 128 keys of 8 channels, after the first.
std::int64_t allocations_of_a_product()
{
  std::array<float, 64 * 8> queries{};
  std::array<float, 128 * 8> keys{};
  std::array<float, 64 * 128> scores{};
  const auto multiply = [&] {
    gemm(scores.data(), 128, {queries.data(), 8}, {keys.data(), 8, true}, 64, 128, 8, false);
  };
  multiply();
  const AllocationCount before = allocations();
  multiply();
  return (allocations() - before).operator_new;
}

}  // namespace

TEST_CASE("cpu training step: allocates nothing after the first, but for what the library does in matrix products")
{
  for (const int count : {1, 2})
    for (const bool recompute : {false, true}) {
      INFO(count << " threads, recompute " << recompute);
      const Threads threads(count);
      ModelConfig config = tiny_config(2, 3, 24, 140);
      config.vocabulary = 251;
      MeasuredGroups measured;
      Run run(make_measured_kernels(make_cpu_kernels(), measured), DType::f32, config,
              {DType::f32, 2, 133, 0.1, {}, recompute});
      const TinyModel& tiny = run.tiny;
      const Kernels& kernels = run.lab.kernels();
      const Tensor m = run.lab.zeros(DType::f32, {tiny.table.elements()});
      const Tensor v = run.lab.zeros(DType::f32, {tiny.table.elements()});
      const MicroBatch batch = tiny.batch(first_sequence);
      const auto step = [&] {
        forward_backward(tiny.model, tiny.p, tiny.d, tiny.kept, tiny.work, run.lab.stream(), batch);
        const double norm = kernels->squared_norm(tiny.gradients).value();
        kernels->adamw(tiny.parameters, m, v, tiny.gradients, {.learning_rate = 1e-3, .gradient_scale = 1 / norm},
                       {});
      };
      step();
      const GroupTotal earlier = measured.total(KernelGroup::matmul),
                       attended = measured.total(KernelGroup::attention);
      const AllocationCount before = allocations();
      step();
      const std::int64_t all = (allocations() - before).operator_new;
      const GroupTotal& products = measured.total(KernelGroup::matmul);
      const std::int64_t in_products = (products.allocations - earlier.allocations).operator_new;
      const std::int64_t in_attention =
          (measured.total(KernelGroup::attention).allocations - attended.allocations).operator_new;
      CHECK(all - in_products - in_attention == 0);
      // For its threads oneDNN makes a function object a product; version 3 makes more, in the products of attention too. What C
      // libraries ask malloc() for is theirs: oneDNN's packed factors, libgomp's teams.
      if (allocations_of_a_product() == 0) CHECK(in_attention == 0);
      CHECK(in_products <= (count == 1 ? 0 : products.calls - earlier.calls));
      CHECK(before.operator_new > 0);  // they are counted
    }
}
