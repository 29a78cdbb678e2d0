#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

// What tensor parallelism rests on: n parts of each layer, computed one after the other, with partial sums added
// pairwise, neighbours first, are the whole layer bit for bit.

namespace {

/// A whole model and its parts, on the same micro-batch. Each stage is computed by both and compared.
struct Divided {
  Divided(Laboratory& laboratory, const ModelConfig& config, const TinyOptions& options, int n)
      : lab(laboratory), whole(lab, config, options)
  {
    for (int i = 0; i < n; ++i) {
      TinyOptions mine = options;
      mine.part = {i, n};
      parts.push_back(std::make_unique<TinyModel>(lab, config, mine));
      lab.stream().copy(parts.back()->parameters, part_of(lab, parts.back()->table, whole.table, whole.parameters));
      batches.push_back(parts.back()->batch(6));
    }
    batch = whole.batch(6);
  }

  /// Runs @p stage(model, its micro-batch) for the whole model and for every part.
  template <class Stage>
  void run(const Stage& stage)
  {
    stage(whole, batch);
    for (std::size_t i = 0; i < parts.size(); ++i) stage(*parts[i], batches[i]);
  }

  /// Adds up what @p which(model) views in every part, neighbours first, and leaves the sum in all of them.
  template <class Which>
  void all_reduce(const Which& which, std::size_t first_distance = 1)
  {
    std::vector<Tensor> sums;
    for (const auto& part : parts) sums.push_back(lab.copied(which(*part)));
    for (std::size_t k = first_distance; k < first_distance * sums.size(); k *= 2) {
      const std::size_t distance = k < sums.size() ? k : k / sums.size();
      std::vector<Tensor> next;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        next.push_back(lab.copied(sums[std::min(i, i ^ distance)]));
        lab.kernels()->add(next.back(), sums[std::max(i, i ^ distance)]);
      }
      sums = next;
    }
    for (std::size_t i = 0; i < parts.size(); ++i) lab.stream().copy(which(*parts[i]), sums[i]);
  }

  /// The largest of what @p which(model) views in every part, left in all of them.
  template <class Which>
  void all_maximum(const Which& which)
  {
    for (std::int64_t r = 0; r < which(whole).elements(); ++r) {
      float maximum = which(*parts[0]).template data<float>()[r];
      for (const auto& part : parts) maximum = std::max(maximum, which(*part).template data<float>()[r]);
      for (const auto& part : parts) which(*part).template data<float>()[r] = maximum;
    }
  }

  /// Elements whose bits differ between the whole model and its parts in what @p which(model) views.
  template <class Which>
  std::int64_t different(const Which& which) const
  {
    std::int64_t count = 0;
    for (const auto& part : parts) count += different_bits(which(*part), which(whole));
    return count;
  }

  /// Elements whose bits differ between what the parts have in @p which(model), (R, n), and their columns of the whole's.
  /// @param sections  runs of columns that are dealt out one by one.
  template <class Which>
  std::int64_t different_columns(const Which& which, std::int64_t sections = 1) const
  {
    const std::int64_t R = whole.options.B * whole.options.T, t = std::ssize(parts);
    const std::int64_t width = which(whole).elements() / R / sections, run = width / t;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < t; ++i) {
      const Tensor mine = which(*parts[static_cast<std::size_t>(i)]);
      CHECK(mine.elements() * t == which(whole).elements());
      for (std::int64_t r = 0; r < R; ++r)
        for (std::int64_t s = 0; s < sections; ++s)
          count += different_bits(mine.slice({(r * sections + s) * run, run}),
                                  which(whole).slice({(r * sections + s) * width + i * run, run}));
    }
    return count;
  }

  Laboratory& lab;
  TinyModel whole;
  std::vector<std::unique_ptr<TinyModel>> parts;
  MicroBatch batch;
  std::vector<MicroBatch> batches;
};

const Tensor& output(const TinyModel& m)
{
  return m.work.output;
}
const Tensor& dstream(const TinyModel& m)
{
  return m.work.dstream;
}

/// The result of a branch's columns, before any message, equals those columns of the whole.
void compare_columns(const Divided& all, std::size_t i)
{
  const auto of = [i](const TinyModel& m) -> const BranchActivations& { return m.kept.branches[i]; };
  const bool attention = all.whole.model.branches[i].attention();
  CHECK(all.different_columns([&](const TinyModel& m) { return of(m).inner; }, attention ? 3 : 1) == 0);
  CHECK(all.different_columns([&](const TinyModel& m) { return of(m).hidden; }) == 0);
  if (!attention) return;
  std::int64_t different = 0;
  const std::int64_t B = all.whole.options.B, T = all.whole.options.T;
  const std::int64_t H = all.whole.model.context.config.heads, heads = H / std::ssize(all.parts);
  for (std::int64_t part = 0; part < std::ssize(all.parts); ++part)
    for (std::int64_t b = 0; b < B; ++b)
      different += different_bits(
          of(*all.parts[static_cast<std::size_t>(part)]).log_sum_exp.slice({b * heads * T, heads * T}),
          of(all.whole).log_sum_exp.slice({(b * H + part * heads) * T, heads * T}));
  CHECK(different == 0);
}

/// The forward pass of the chain, with the messages that tensor parallelism sends.
void run_forward(Divided& all)
{
  all.run([](const TinyModel& m, const MicroBatch& b) { m.model.embedding.lookup(output(m), m.p.embedding, b); });
  all.all_reduce(output);
  CHECK(all.different(output) == 0);
  all.run([](const TinyModel& m, const MicroBatch& b) {
    m.model.embedding.add(m.kept.stream(0), output(m), m.p.embedding, b);
  });
  for (std::size_t i = 0; i < all.whole.model.branches.size(); ++i) {
    INFO("branch " << i);
    all.run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].normalise(m.kept.branches[i], m.p.branches[i]);
      m.model.branches[i].apply(output(m), m.kept.branches[i], m.p.branches[i], b);
    });
    compare_columns(all, i);
    CHECK(all.different(output) > 0);  // partial sums
    all.all_reduce(output);
    CHECK(all.different(output) == 0);
    all.run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].add(m.kept.stream(i + 1), m.kept.branches[i], output(m), m.p.branches[i], b);
    });
    CHECK(all.different([&](const TinyModel& m) { return m.kept.stream(i + 1); }) == 0);  // the same dropout too
  }
}

/// The head's forward pass, with a maximum and two sums over the parts.
void run_loss(Divided& all)
{
  all.run([](const TinyModel& m, const MicroBatch&) {
    m.model.head.normalise(m.kept.head, m.p.head);
    m.model.head.logits(m.kept.head, m.p.head);
    m.model.head.row_maximum(m.kept.head);
  });
  CHECK(all.different_columns([](const TinyModel& m) { return m.kept.head.logits; }) == 0);
  const auto maximum = [](const TinyModel& m) { return m.kept.head.maximum; };
  const auto sum = [](const TinyModel& m) { return m.kept.head.sum; };
  const auto target_logit = [](const TinyModel& m) { return m.kept.head.target_logit; };
  all.all_maximum(maximum);
  CHECK(all.different(maximum) == 0);
  all.run([](const TinyModel& m, const MicroBatch& b) { m.model.head.row_sum(m.kept.head, b); });
  all.all_reduce(sum);
  all.all_reduce(target_logit);
  CHECK(all.different(sum) == 0);
  CHECK(all.different(target_logit) == 0);
  const LossSum loss = all.whole.model.head.loss(all.whole.kept.head, all.batch);
  CHECK(loss.nats.value() > 0);
  for (std::size_t i = 0; i < all.parts.size(); ++i)
    CHECK(all.parts[i]->model.head.loss(all.parts[i]->kept.head, all.batches[i]).nats.lanes() == loss.nats.lanes());
}

/// The backward pass of the chain, with its messages.
void run_backward(Divided& all)
{
  all.run([&](const TinyModel& m, const MicroBatch& b) {
    m.lab.stream().zero(dstream(m));
    m.model.head.apply_backward(output(m), m.d.head, m.kept.head, m.p.head, b);
  });
  all.all_reduce(output);
  CHECK(all.different(output) == 0);
  all.run([](const TinyModel& m, const MicroBatch& b) {
    m.model.head.normalise_backward(dstream(m), m.d.head, output(m), m.kept.head, m.p.head, b);
  });
  for (std::size_t i = all.whole.model.branches.size(); i-- > 0;) {
    INFO("branch " << i);
    all.run([&](const TinyModel& m, const MicroBatch& b) {
      const Branch& branch = m.model.branches[i];
      const Tensor doutput = branch.add_backward(m.d.branches[i], dstream(m), output(m), b);
      branch.apply_backward(output(m), m.d.branches[i], doutput, m.work.wide, m.kept.branches[i], m.p.branches[i],
                            b);
    });
    all.all_reduce(output);
    CHECK(all.different(output) == 0);
    all.run([&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].normalise_backward(dstream(m), m.d.branches[i], output(m), m.kept.branches[i],
                                             m.p.branches[i], b);
    });
    CHECK(all.different(dstream) == 0);
  }
  all.run(
      [](const TinyModel& m, const MicroBatch& b) { m.model.embedding.backward(m.d.embedding, dstream(m), b); });
}

/// Compares the gradients of every part with the slabs of the whole's, tensor by tensor, and padding with zero.
void compare_gradients(Divided& all)
{
  Laboratory& lab = all.lab;
  const Parameter& wte = all.whole.table.entries().front();
  for (const auto& part : all.parts) {
    const Tensor expected = part_of(lab, part->table, all.whole.table, all.whole.gradients);
    for (const Parameter& p : part->table.entries()) {
      INFO(p.name << " of part " << part->options.part.index);
      CHECK(different_bits(part->gradients.slice(p.elements), expected.slice(p.elements)) == 0);
    }
    const Tensor tied = lab.zeros(DType::f32, {all.whole.table.elements()});
    lab.stream().copy(tied.slice(wte.elements), all.whole.tied);
    const Tensor mine = part_of(lab, part->table, all.whole.table, tied);
    CHECK(different_bits(part->tied, mine.slice({0, part->tied.elements()})) == 0);
  }
}

}  // namespace

TEST_CASE("parts: 2, 4 and 8 parts of all layers give the bits of the whole model, activations and gradients")
{
  ModelConfig config = tiny_config(2, 8, 32, 16);
  for (const int n : {2, 4, 8})
    for (const double dropout : {0.0, 0.2})
      for (const Mask mask : {Mask{}, Mask{Mask::Kind::prefix, 3}}) {
        INFO(n << " parts, dropout " << dropout << ", mask " << mask.text());
        config.mask = mask;
        Laboratory lab;
        Divided all(lab, config, {DType::f32, 2, 16, dropout}, n);
        run_forward(all);
        run_loss(all);
        run_backward(all);
        compare_gradients(all);
        CHECK(lab.kernels()->squared_norm(all.whole.gradients).value() > 0);
      }
}

TEST_CASE("parts: the whole model's pieces in order are forward_backward()")
{
  Laboratory lab;
  const ModelConfig config = tiny_config(2, 8, 32, 16);
  Divided all(lab, config, {DType::f32, 2, 16, 0.2}, 2);
  run_forward(all);
  run_loss(all);
  run_backward(all);
  const TinyModel chain(lab, config, {DType::f32, 2, 16, 0.2});
  chain.forward_backward(6);
  CHECK(different_bits(chain.gradients, all.whole.gradients) == 0);
  CHECK(different_bits(chain.tied, all.whole.tied) == 0);
}

TEST_CASE("parts: another order of additions changes bits, but only by rounding")
{
  Laboratory lab;
  Divided all(lab, tiny_config(1, 8, 32, 16), {DType::f32, 2, 16, 0.0}, 4);
  run_forward(all);
  for (const std::size_t i : {0, 1}) {
    const auto apply = [&](const TinyModel& m, const MicroBatch& b) {
      m.model.branches[i].apply(output(m), m.kept.branches[i], m.p.branches[i], b);
    };
    all.run(apply);
    all.all_reduce(output, 2);  // distance 2 first, then 1: the textbook order
    CHECK(all.different(output) > 0);
    // a sum of at most 128 terms in another order, each rounding 6e-8
    CHECK(relative_error(output(*all.parts[0]), output(all.whole)) < 1e-6);
  }
}

TEST_CASE("parts: hold only their share inside a branch, and all of what is between branches")
{
  Laboratory lab;
  const ModelConfig config = tiny_config(1, 8, 32, 16);
  const TinyModel whole(lab, config, {DType::f32, 2, 16}), part(lab, config, {DType::f32, 2, 16, 0, {2, 4}});
  CHECK(part.kept.branches[0].inner.elements() * 4 == whole.kept.branches[0].inner.elements());
  CHECK(part.kept.branches[1].hidden.elements() * 4 == whole.kept.branches[1].hidden.elements());
  CHECK(part.kept.head.logits.elements() * 4 == whole.kept.head.logits.elements());
  CHECK(part.kept.branches[0].input.elements() == whole.kept.branches[0].input.elements());
  std::int64_t divided = 0, replicated = 0;
  for (const Parameter& p : whole.table.entries())
    (p.split == Split::none ? replicated : divided) += p.stored.elements();
  CHECK(part.table.elements() == replicated + divided / 4);
}

TEST_CASE("parts: padding of the vocabulary is neither predicted nor counted, on any shard")
{
  const ModelConfig config =
      tiny_config(1, 8, 32, 16);  // 11 entries and 5 of padding: of 8 parts two have nothing else
  for (const int n : {2, 4, 8}) {
    INFO(n << " parts");
    Laboratory lab;
    Divided all(lab, config, {DType::f32, 2, 16, 0.0}, n);
    all.run([](const TinyModel& m, const MicroBatch&) {  // every entry is as likely as any other
      m.lab.stream().zero(m.parameters);
      m.lab.stream().zero(m.kept.head.input);
    });
    run_loss(all);
    const LossSum loss = all.parts[0]->model.head.loss(all.parts[0]->kept.head, all.batches[0]);
    CHECK(loss.mean() == Approx(std::log(11.0)).epsilon(1e-6));  // a rounding of f32
    for (std::int64_t i = 0; i < n; ++i) {
      const TinyModel& m = *all.parts[static_cast<std::size_t>(i)];
      m.model.head.apply_backward(output(m), m.d.head, m.kept.head, m.p.head,
                                  all.batches[static_cast<std::size_t>(i)]);
      const std::int64_t stored = 16 / n, valid = intersect({i * stored, stored}, {0, 11}).count;
      for (std::int64_t r = 0; r < 32; ++r) {
        const std::vector<double> row = values_of(m.kept.head.logits.slice({r * stored, stored}));
        CHECK(std::count(row.begin() + valid, row.end(), 0.0) == stored - valid);
      }
    }
  }
}

TEST_CASE("tokens_of: between divided layers a part of each sequence has the bits of its rows of the whole")
{
  const ModelConfig config = tiny_config(1, 8, 32, 16);
  constexpr std::int64_t B = 2, T = 16, C = 32;
  Laboratory lab;
  const TinyModel whole(lab, config, {DType::f32, B, T, 0.2});
  const MicroBatch batch = whole.batch(6);
  whole.forward_backward(6);
  const Tensor x = lab.filled(DType::f32, {B * T, C}, 3), y = lab.filled(DType::f32, {B * T, C}, 4);
  const BranchTensors& p = whole.p.branches[1];
  const Branch& branch = whole.model.branches[1];
  const auto run = [&](const Tensor& in, const Tensor& partial, const MicroBatch& rows) {
    const std::int64_t R = in.elements() / C;
    BranchActivations a;
    a.input = lab.zeros(DType::f32, {R, C});
    a.normalised = lab.zeros(DType::f32, {R, C});
    a.mean = lab.zeros(DType::f32, {R});
    a.rstd = lab.zeros(DType::f32, {R});
    whole.model.embedding.add(a.input, in, whole.p.embedding, rows);
    branch.normalise(a, p);
    const Tensor next = lab.zeros(DType::f32, {R, C}), gradient = lab.zeros(DType::f32, {R, C});
    branch.add(next, a, partial, p, rows);
    const BranchTensors d = whole.d.branches[1];
    const Tensor doutput = branch.add_backward(d, next, gradient, rows);
    return std::vector<Tensor>{a.input, a.normalised, next, doutput};
  };
  const std::vector<Tensor> expected = run(x, y, batch);
  for (const int t : {2, 4, 8})
    for (int part = 0; part < t; ++part) {
      CAPTURE(t, part);
      const std::int64_t tokens = T / t, n = tokens * C;
      const auto rows_of = [&](const Tensor& all) {
        const Tensor mine = lab.zeros(DType::f32, {B * tokens, C});
        for (std::int64_t b = 0; b < B; ++b)
          lab.stream().copy(mine.slice({b * n, n}), all.slice({(b * T + part * tokens) * C, n}));
        return mine;
      };
      const MicroBatch rows = tokens_of(batch, {part, t});
      CHECK(rows.rows.tokens == Range{part * tokens, tokens});
      CHECK(rows.rows.sequences == batch.rows.sequences);
      CHECK(rows.sixteenths == 16 / t);
      const std::vector<Tensor> found = run(rows_of(x), rows_of(y), rows);
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(different_bits(found[i], rows_of(expected[i])) == 0);
      const MicroBatch one = sequence_of(rows, 1);
      CHECK(one.rows.sequences == Range{7, 1});
      CHECK(one.rows.tokens == rows.rows.tokens);
      CHECK(one.sixteenths == rows.sixteenths);
    }
  CHECK_THROWS_AS(tokens_of(batch, {0, 3}), Error);
}
