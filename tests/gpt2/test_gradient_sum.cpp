#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "common/base/tree_sum.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/gradient_sum.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t G = 16;                             // sequences of the global batch
constexpr GradientLayout layout{50, DType::f32, {5, 20}};  // 50 gradients, of which 20 are of the tied embedding
constexpr std::int64_t kinds = 70;  // what a sequence adds: 50, and 20 for the tied embedding's separate sum

/// What sequence @p g adds to gradient @p i; sizes differ so much that every order of summation has bits of its own.
float leaf(std::int64_t g, std::int64_t i)
{
  static const std::vector<float> leaves = [] {
    std::vector<float> all;
    for (std::int64_t k = 0; k < G * kinds; ++k)
      all.push_back(static_cast<float>(number(k, 3) * std::pow(10.0, 3 * number(k, 4))));
    return all;
  }();
  return leaves[static_cast<std::size_t>(g * kinds + i)];
}

/// The effect of a backward pass over @p sequences: += the tree over its sequences.
/// @param shard  the gradients that @p to.flat holds, of all.
void backward(const GradientTensors& to, Range sequences, Range shard = {0, layout.elements})
{
  const auto sum = [&](std::int64_t i) {
    return tree_sum(sequences.first, sequences.count, [&](std::int64_t g) { return leaf(g, i); });
  };
  for (std::int64_t i = 0; i < shard.count; ++i) to.flat.data<float>()[i] += sum(shard.first + i);
  for (std::int64_t i = 0; i < to.tied.elements(); ++i) to.tied.data<float>()[i] += sum(layout.elements + i);
}

/// A sum on the CPU of a test.
std::unique_ptr<GradientSum> make_sum(Laboratory& lab, const GradientLayout& of = layout)
{
  return make_tree_sum(lab.kernels(), lab.stream(), lab.memory(), of);
}

/// Adds the micro-batches @p sequences to a sum, in the order that they have.
void add_all(GradientSum& sum, const std::vector<Range>& sequences)
{
  for (const Range range : sequences) {
    const GradientTensors to = sum.begin(range);
    backward(to, range);
    sum.end(range);
  }
}

/// @p run cut into micro-batches of @p B sequences, in an order that depends on @p shuffle; 0 is from first to last.
std::vector<Range> micro_batches(Range run, std::int64_t B, std::uint32_t shuffle)
{
  std::vector<Range> cut;
  for (std::int64_t first = run.first; first < run.end(); first += B) cut.push_back({first, B});
  if (shuffle > 0)
    std::sort(cut.begin(), cut.end(),
              [&](Range a, Range b) { return number(a.first, shuffle + 50) < number(b.first, shuffle + 50); });
  return cut;
}

/// Adds tensors pairwise, neighbours first, into the first.
void add_neighbours_first(const Kernels& kernels, const std::vector<Tensor>& tensors)
{
  for (std::size_t distance = 1; distance < tensors.size(); distance *= 2)
    for (std::size_t i = 0; i < tensors.size(); i += 2 * distance) kernels->add(tensors[i], tensors[i + distance]);
}

/// Copies of the two sums of the whole global batch as one micro-batch: what every layout must find.
std::vector<Tensor> whole_batch(Laboratory& lab)
{
  const std::unique_ptr<GradientSum> sum = make_sum(lab);
  add_all(*sum, {{0, G}});
  std::vector<Tensor> sums;
  for (const PartialSum& one : sum->sums()) sums.push_back(lab.copied(one.whole()));
  return sums;
}

}  // namespace

TEST_CASE("make_tree_sum: ranks that add runs of the batch first have the bits of one micro-batch, in any order")
{
  Laboratory lab;
  const std::vector<Tensor> expected = whole_batch(lab);
  for (std::int64_t N = 1; N <= 8; N *= 2)
    for (std::int64_t B = 1; B <= G / N; B *= 2)
      for (std::uint32_t shuffle = 0; shuffle < 6; ++shuffle) {
        INFO(N << " ranks, micro-batches of " << B << ", order " << shuffle);
        std::vector<std::unique_ptr<GradientSum>> ranks;
        std::vector<Tensor> flat, tied;
        for (std::int64_t r = 0; r < N; ++r) {
          ranks.push_back(make_sum(lab));
          add_all(*ranks.back(), micro_batches({r * G / N, G / N}, B, shuffle));
          flat.push_back(ranks.back()->sums().at(0).whole());
          tied.push_back(ranks.back()->sums().at(1).whole());
        }
        add_neighbours_first(lab.kernels(), flat);
        add_neighbours_first(lab.kernels(), tied);
        CHECK(different_bits(flat[0], expected[0]) == 0);
        CHECK(different_bits(tied[0], expected[1]) == 0);

        const Tensor sum = lab.copied(expected[0]);
        lab.kernels()->add(sum.slice(layout.tied), expected[1]);
        CHECK(different_bits(ranks[0]->total(), sum) == 0);
      }
}

TEST_CASE(
    "make_tree_sum: any number of sequences, on one rank or dealt out among any number of ranks, is tree_sum()")
{
  for (std::int64_t all = 1; all <= G; ++all)
    for (std::int64_t N = 1; N <= std::min<std::int64_t>(all, 8); ++N)
      for (const bool piecewise : {false, true}) {
        INFO(all << " sequences of " << N << " ranks");
        Laboratory lab;
        std::vector<std::unique_ptr<GradientSum>> ranks;
        std::vector<Range> runs;
        std::vector<Tensor> flat, tied;
        for (std::int64_t r = 0; r < N; ++r) {
          const Range share = Partition(all, N).shard(r);
          ranks.push_back(make_sum(lab));
          GradientSum& sum = *ranks.back();
          add_all(sum, micro_batches({share.first, share.count - 1}, 1, 0));
          const Range last{share.end() - 1, 1};
          backward(sum.begin(last), last);
          // Lesson 03 sums over ranks during the last backward pass, others after it.
          std::vector<PartialSum> sums = piecewise ? sum.finish({0, layout.elements}) : std::vector<PartialSum>{};
          sum.end(last);
          if (N == 1 && !piecewise) continue;  // total() has to add up by itself
          if (!piecewise) sums = sum.sums();
          const std::vector<Range> of_rank = aligned_runs(share);
          REQUIRE(sums[0].subtrees.size() == of_rank.size());
          runs.insert(runs.end(), of_rank.begin(), of_rank.end());
          flat.insert(flat.end(), sums[0].subtrees.begin(), sums[0].subtrees.end());
          tied.insert(tied.end(), sums[1].subtrees.begin(), sums[1].subtrees.end());
          const CategoryBytes bytes = Arithmetic(Sums::exact).gradient_bytes(layout, share);
          if (N == 1) CHECK(lab.ledger().current(Tier::device) == bytes);
        }
        tree_over_runs(runs, [&](std::size_t i, std::size_t j) {
          lab.kernels()->add(flat[i], flat[j]);
          lab.kernels()->add(tied[i], tied[j]);
        });
        const Tensor total = ranks[0]->total();
        const auto sum_of = [&](std::int64_t i) {
          return tree_sum(0, all, [&](std::int64_t g) { return leaf(g, i); });
        };
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < layout.elements; ++i) {
          const bool is_tied = layout.tied.contains(i);
          const float other = is_tied ? sum_of(layout.elements + i - layout.tied.first) : 0;
          wrong += total.data<float>()[i] != (is_tied ? sum_of(i) + other : sum_of(i));
        }
        CHECK(wrong == 0);
      }
}

TEST_CASE("make_tree_sum: ranks that add each micro-batch over ranks first, shard by shard, have the same bits")
{
  // Rank r reads [(m N + r) B, (m N + r + 1) B) in micro-batch m; the owner of a shard adds N B sequences at a time.
  Laboratory lab;
  const Tensor expected = whole_batch(lab)[0];
  for (std::int64_t N = 1; N <= 8; N *= 2)
    for (std::int64_t B = 1; B <= G / N; B *= 2)
      for (std::uint32_t shuffle = 0; shuffle < 3; ++shuffle)
        for (std::int64_t owner = 0; owner < N; ++owner) {
          const Range shard = Partition(layout.elements, N).shard(owner);
          const std::unique_ptr<GradientSum> sum = make_sum(lab, {shard.count, DType::f32, {}});
          for (const Range run : micro_batches({0, G}, N * B, shuffle)) {
            const GradientTensors to = sum->begin(run);
            std::vector<Tensor> ranks;
            for (std::int64_t r = 0; r < N; ++r) {
              ranks.push_back(lab.zeros(DType::f32, {shard.count}));
              backward({ranks.back(), {}}, {run.first + r * B, B}, shard);
            }
            add_neighbours_first(lab.kernels(), ranks);
            lab.kernels()->add(to.flat, ranks[0]);
            sum->end(run);
          }
          INFO(N << " ranks, micro-batches of " << B << ", order " << shuffle << ", shard " << owner);
          CHECK(sum->sums().size() == 1);
          CHECK(different_bits(sum->total(), expected.slice(shard)) == 0);
        }
}

TEST_CASE("GradientSum: finish() gives, piece by piece, what sums() gives after end()")
{
  Laboratory lab;
  for (const bool tree : {true, false})
    for (std::int64_t B = 1; B <= G; B *= 2) {
      const std::unique_ptr<GradientSum> sum =
          tree ? make_sum(lab) : make_running_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
      for (std::int64_t first = 0; first < G; first += B) {
        const Range run{first, B};
        const GradientTensors to = sum->begin(run);
        backward(to, run);
        if (first + B < G) {
          sum->end(run);
          continue;
        }
        std::vector<Tensor> pieces;
        for (const Range piece : {Range{30, 20}, Range{29, 1}, Range{7, 22}}) {
          const std::vector<PartialSum> finished = sum->finish(piece);
          CHECK(finished.size() == (tree && piece.end() == layout.elements ? 2 : 1));
          for (const PartialSum& one : finished) pieces.push_back(lab.copied(one.whole()));
        }
        sum->end(run);  // finishes the rest
        std::vector<Tensor> whole;
        for (const PartialSum& one : sum->sums()) whole.push_back(one.whole());
        INFO((tree ? "tree" : "running") << " sum, micro-batches of " << B);
        CHECK(different_bits(pieces[0], whole[0].slice({30, 20})) == 0);
        if (tree) CHECK(different_bits(pieces[1], whole[1]) == 0);
        const std::size_t next = tree ? 2 : 1;
        CHECK(different_bits(pieces[next], whole[0].slice({29, 1})) == 0);
        CHECK(different_bits(pieces[next + 1], whole[0].slice({7, 22})) == 0);
        if (tree) CHECK(different_bits(whole[0], whole_batch(lab)[0]) == 0);
      }
    }
}

TEST_CASE("make_tree_sum: elements that are finished out of order are refused")
{
  Laboratory lab;
  const std::unique_ptr<GradientSum> sum = make_sum(lab);
  CHECK_THROWS_AS(sum->finish({40, 10}), Error);  // nothing is open
  sum->begin({0, 2});
  CHECK_THROWS_AS(sum->finish({30, 10}), Error);  // the last element is not among them
  sum->finish({40, 10});
  CHECK_THROWS_AS(sum->finish({40, 10}), Error);  // twice
  sum->finish({30, 10});
  sum->end({0, 2});
}

TEST_CASE("make_tree_sum: the order of the tree matters; the textbook order over ranks has other bits")
{
  Laboratory lab;
  const std::vector<Tensor> expected = whole_batch(lab);
  std::vector<Tensor> flat;
  for (std::int64_t r = 0; r < 4; ++r) {
    const std::unique_ptr<GradientSum> sum = make_sum(lab);
    add_all(*sum, micro_batches({r * 4, 4}, 1, 0));
    flat.push_back(lab.copied(sum->sums()[0].whole()));
  }
  std::swap(flat[1], flat[2]);  // 0 + 2 and 1 + 3 first
  add_neighbours_first(lab.kernels(), flat);
  CHECK(different_bits(flat[0], expected[0]) > 0);
}

TEST_CASE("make_running_sum: has the tree's sum but for rounding, in one buffer")
{
  Laboratory lab;
  const std::vector<Tensor> expected = whole_batch(lab);
  lab.kernels()->add(expected[0].slice(layout.tied), expected[1]);

  const std::int64_t before = lab.ledger().current(Tier::device).total();
  const std::unique_ptr<GradientSum> sum = make_running_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
  CHECK(lab.ledger().current(Tier::device).total() - before == 50 * 4);
  for (int round = 0; round < 2; ++round) {
    for (const Range range : micro_batches({0, G}, 1, 2)) {
      const GradientTensors to = sum->begin(range);
      CHECK(to.tied.empty());  // both contributions go to the same place
      backward(to, range);
      const Tensor tied = lab.zeros(DType::f32, {20});
      backward({Tensor(), tied}, range, {0, 0});
      lab.kernels()->add(to.flat.slice(layout.tied), tied);
      sum->end(range);
    }
    CHECK(sum->sums().size() == 1);
    // At most 32 roundings of 6e-8 of the largest term; terms cancel to no less than a tenth.
    CHECK(relative_error(sum->total(), expected[0]) < 1e-6);
    CHECK(different_bits(sum->total(), expected[0]) > 0);
    sum->clear();
    CHECK(lab.kernels()->squared_norm(sum->total()).value() == 0);
  }
}

TEST_CASE(
    "GradientSum: add() does what begin(), += and end() do, also in the second step and between passes of its own")
{
  Laboratory lab;
  for (const bool tree : {true, false}) {
    INFO("tree = " << tree);
    const auto make = [&] {
      return tree ? make_sum(lab) : make_running_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
    };
    const std::unique_ptr<GradientSum> expected = make(), sum = make(), mixed = make();
    for (int step = 0; step < 2; ++step) {
      for (GradientSum* each : {expected.get(), sum.get(), mixed.get()}) each->clear();
      for (const Range range : micro_batches({0, G}, 4, static_cast<std::uint32_t>(step))) {
        std::vector<Tensor> gradients{lab.zeros(DType::f32, {layout.elements})};
        if (tree) gradients.push_back(lab.zeros(DType::f32, {layout.tied.count}));
        backward({gradients[0], tree ? gradients[1] : Tensor()}, range);
        add_all(*expected, {range});
        sum->add(range, gradients);
        if (range.first % 8 == 0)
          mixed->add(range, gradients);
        else
          add_all(*mixed, {range});
      }
      CHECK(lab.kernels()->squared_norm(expected->sums()[0].whole()).value() > 0);
      for (std::size_t i = 0; i < expected->sums().size(); ++i) {
        CHECK(different_bits(sum->sums()[i].whole(), expected->sums()[i].whole()) == 0);
        CHECK(different_bits(mixed->sums()[i].whole(), expected->sums()[i].whole()) == 0);
      }
    }
  }
}

TEST_CASE("make_running_sum: is zero before anything is added")
{
  Laboratory lab;
  const std::unique_ptr<GradientSum> sum = make_running_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
  CHECK(lab.kernels()->squared_norm(sum->total()).value() == 0);
  sum->clear();
  CHECK(lab.kernels()->squared_norm(sum->finish({0, 50})[0].whole()).value() == 0);
  sum->clear();
  CHECK(lab.kernels()->squared_norm(sum->begin({0, 1}).flat).value() == 0);
}

TEST_CASE("make_tree_sum: micro-batches that do not fit the tree are refused")
{
  Laboratory lab;
  const std::unique_ptr<GradientSum> sum = make_sum(lab);
  CHECK_THROWS_AS(sum->begin({0, 3}), Error);  // no power of two
  CHECK_THROWS_AS(sum->begin({0, 0}), Error);
  CHECK_THROWS_AS(sum->begin({2, 4}), Error);  // not aligned
  CHECK_THROWS_AS(sum->sums(), Error);         // nothing there
  sum->begin({2, 2});
  CHECK_THROWS_AS(sum->begin({4, 2}), Error);  // one at a time
  CHECK_THROWS_AS(sum->end({4, 2}), Error);    // not what began
  sum->end({2, 2});
  CHECK_NOTHROW(sum->sums());  // a run by itself is a sum
  add_all(*sum, {{4, 2}});
  CHECK(sum->sums()[0].subtrees.size() == 2);  // [2, 4) and [4, 6) are no neighbours
  CHECK_THROWS_AS(sum->sums()[0].whole(), Error);
  sum->clear();
  add_all(*sum, {{2, 2}, {4, 2}});
  CHECK_THROWS_AS(sum->total(), Error);  // [0, 2) is missing, and no ranks have summed
  sum->clear();
  add_all(*sum, {{0, 2}, {4, 2}});
  CHECK_THROWS_AS(sum->total(), Error);  // [2, 4) is missing
}

TEST_CASE("make_tree_sum: repeats after clear() with the same buffers, as many as gradient_bytes() counts")
{
  Laboratory lab;
  const std::vector<Tensor> expected = whole_batch(lab);
  const CategoryBytes before = lab.ledger().current(Tier::device);
  for (std::int64_t B = 1; B <= G; B *= 2) {
    const std::unique_ptr<GradientSum> sum = make_sum(lab);
    for (int step = 0; step < 3; ++step) {
      sum->clear();
      add_all(*sum, micro_batches({0, G}, B, 0));
      CHECK(different_bits(sum->sums()[0].whole(), expected[0]) == 0);
      CHECK(different_bits(sum->sums()[1].whole(), expected[1]) == 0);
      const Arithmetic arithmetic(Sums::exact);
      CHECK(lab.ledger().current(Tier::device) == arithmetic.gradient_bytes(layout, G / B));
    }
  }
  CHECK(lab.ledger().current(Tier::device) == before);
}

TEST_CASE("micro_batch_order: a micro-batch adds the sums that wait for it, and the last leaves one sum")
{
  for (const bool tree : {false, true}) {
    for (std::int64_t M = 1; M <= 20; ++M) {
      INFO("tree = " << tree << ", M = " << M);
      std::vector<std::int64_t> levels(
          static_cast<std::size_t>(micro_batch_levels(tree, M)));  // passes in each sum
      for (std::int64_t m = 0; m < M; ++m) {
        const MicroBatchOrder order = micro_batch_order(tree, m, M);
        std::int64_t sum = 1;
        for (const std::size_t l : order.added) {
          if (tree && m + 1 < M) REQUIRE(levels[l] == sum);  // neighbours of the same size
          if (tree) REQUIRE(levels[l] >= sum);               // the rest is added from the last
          sum += std::exchange(levels[l], 0);
        }
        REQUIRE(levels.at(order.level) == 0);
        levels[order.level] = sum;
      }
      CHECK(levels.back() == M);
    }
  }
}
