// The messages between tensor-parallel ranks of lesson 08: sums, and the placement of rows.

#include <algorithm>
#include <limits>
#include <vector>

#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t B = 3, T = 12, C = 8, R = B * T;  // 1, 2, 3 and 4 parts divide T and C

/// The messages of all ranks, which divide a model of C channels.
struct Parts {
  explicit Parts(Algorithm algorithm, bool divides_rows, bool regather = false, DType type = DType::f32)
      : shape{type, B, T, part, false, divides_rows ? part : Part{}, regather}, test(algorithm)
  {
  }

  /// Small whole numbers, so that sums are without rounding: (R, C) of some rank.
  double value(int rank, std::int64_t i) const { return value_at(rank, i) - 5; }
  Tensor of_rank(int rank)
  {
    const Tensor x = lab.zeros(shape.type, {R, C});
    std::vector<double> values;
    for (std::int64_t i = 0; i < R * C; ++i) values.push_back(value(rank, i));
    assign(x, values);
    return x;
  }
  /// The tokens [T / t part, T / t (part + 1)) of each sequence.
  std::vector<double> own_rows(const std::vector<double>& all) const
  {
    const std::int64_t tokens = T / shape.tokens.count;
    std::vector<double> own;
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t i = 0; i < tokens * C; ++i)
        own.push_back(all[static_cast<std::size_t>((b * T + shape.tokens.index * tokens) * C + i)]);
    return own;
  }
  /// The plain sum over the ranks.
  std::vector<double> sum() const
  {
    std::vector<double> sums(R * C);
    for (int rank = 0; rank < world().ranks(); ++rank)
      for (std::int64_t i = 0; i < R * C; ++i) sums[static_cast<std::size_t>(i)] += value(rank, i);
    return sums;
  }
  std::int64_t communication() { return test.ledger.current(Tier::device)[Category::communication]; }

  Part part{world().rank(), world().ranks()};
  ActivationShape shape;
  Laboratory lab;
  GroupForTest test;
  TimeLedger time;
  ModelConfig config{"test", 1, 12, C, T, 11, {}};
  Workspace work{lab.memory(), config, shape};
  TensorParallelMessages messages{test.group, shape, C, work, lab.kernels(), time};
};

template <class Work>
void for_each_case(const Work& work)
{
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::shared})
    for (const bool divides_rows : {false, true})
      for (const DType type : {DType::f32, DType::bf16}) {
        if (algorithm == Algorithm::halving && world().ranks() == 3) continue;
        INFO(name_of(algorithm) << ", divides rows " << divides_rows << ", " << name_of(type));
        work(algorithm, divides_rows, type);
      }
}

}  // namespace

TEST_CASE("TensorParallelMessages: a sum is the plain sum, of all rows or of this part's")
{
  for_each_case([](Algorithm algorithm, bool divides_rows, DType type) {
    Parts parts(algorithm, divides_rows, false, type);
    for (int time = 0; time < 2; ++time) {
      const Tensor sum = parts.messages.sum(parts.of_rank(world().rank()));
      CHECK(sum.shape() == Shape{R / parts.shape.tokens.count, C});
      CHECK(values_of(sum) == parts.own_rows(parts.sum()));
    }
  });
}

TEST_CASE("TensorParallelMessages: gather puts the rows of all parts to their places, also over those of this part")
{
  for_each_case([](Algorithm algorithm, bool divides_rows, DType type) {
    Parts parts(algorithm, divides_rows, false, type);
    const std::vector<double> all = values_of(parts.of_rank(7));  // what the parts have rows of
    const std::vector<double> own = parts.own_rows(all);
    const Tensor place = parts.lab.zeros(type, {R, C});
    const Tensor mine = place.slice({0, std::ssize(own)});
    assign(mine, own);
    const Tensor gathered = parts.messages.gather(mine, place);
    CHECK(values_of(gathered) == all);
    CHECK(gathered.raw() == place.raw());
  });
}

TEST_CASE("TensorParallelMessages: of rows that every part has, its own are copied to where rows are gathered from")
{
  for_each_case([](Algorithm algorithm, bool divides_rows, DType type) {
    Parts parts(algorithm, divides_rows, false, type);
    const Tensor all = parts.of_rank(7), own = parts.messages.own_of(all);
    CHECK(own.shape() == Shape{R / parts.shape.tokens.count, C});
    CHECK(values_of(own) == parts.own_rows(values_of(all)));
    CHECK(values_of(parts.messages.gather(own, parts.lab.zeros(type, {R, C}))) == values_of(all));
  });
}

TEST_CASE("TensorParallelMessages: a sum, cut in its halves, is an all-reduce")
{
  for_each_case([](Algorithm algorithm, bool divides_rows, DType type) {
    Parts parts(algorithm, divides_rows, false, type);
    const Tensor place = parts.lab.zeros(type, {R, C});
    const Tensor gathered = parts.messages.gather(parts.messages.sum(parts.of_rank(world().rank())), place);
    CHECK(values_of(gathered) == parts.sum());
  });
}

TEST_CASE("TensorParallelMessages: the largest of all parts, and sums of one number a row")
{
  for_each_case([](Algorithm algorithm, bool divides_rows, DType type) {
    Parts parts(algorithm, divides_rows, false, type);
    const int N = world().ranks();
    std::vector<double> largest(R, -100), sums(R), mine;
    for (int rank = 0; rank < N; ++rank)
      for (std::int64_t r = 0; r < R; ++r) {
        const bool nothing = N > 1 && rank == N - 1 && r % 2 == 1;  // but padding
        const double value = nothing ? -std::numeric_limits<double>::infinity() : parts.value(rank, r);
        largest[static_cast<std::size_t>(r)] = std::max(largest[static_cast<std::size_t>(r)], value);
        sums[static_cast<std::size_t>(r)] += parts.value(rank, r);
        if (rank == world().rank()) mine.push_back(value);
      }
    const Tensor maximum = parts.lab.zeros(DType::f32, {R}), sum = parts.lab.zeros(DType::f32, {R});
    assign(maximum, mine);
    parts.messages.largest(maximum);
    CHECK(values_of(maximum) == largest);
    for (std::int64_t r = 0; r < R; ++r) sum.data<float>()[r] = static_cast<float>(parts.value(world().rank(), r));
    parts.messages.sum_numbers(sum);
    CHECK(values_of(sum) == sums);
  });
}

TEST_CASE(
    "TensorParallelMessages: normalised rows are gathered once where all are kept, and twice where they are not")
{
  for (const bool divides_rows : {false, true})
    for (const bool regather : {false, true}) {
      if (regather && !divides_rows) continue;
      INFO("divides rows " << divides_rows << ", regather " << regather);
      Parts parts(Algorithm::ring, divides_rows, regather);
      const Activations kept(parts.lab.memory(), parts.config, parts.shape, parts.work);
      const std::vector<double> all = values_of(parts.of_rank(7));
      const BranchActivations& branch = kept.branches[0];
      const BranchActivations own = parts.messages.own(branch);
      CHECK(own.normalised.elements() == std::ssize(parts.own_rows(all)));
      CHECK(own.inner.raw() == branch.inner.raw());
      assign(own.normalised, parts.own_rows(all));
      CHECK(values_of(parts.messages.gathered(branch).normalised) == all);

      const BranchActivations other = parts.messages.own(kept.branches[1]);  // what comes in between
      parts.lab.stream().zero(other.normalised);
      parts.messages.gathered(kept.branches[1]);

      const Traffic before = parts.test.traffic.total();
      CHECK(values_of(parts.messages.regathered(branch).normalised) == all);
      const bool sent = (parts.test.traffic.total() - before).messages > 0;
      CHECK(sent == (regather && world().ranks() > 1));
    }
}

TEST_CASE("TensorParallelMessages: allocates the bytes that it reports")
{
  for (const bool divides_rows : {false, true})
    for (const DType type : {DType::f32, DType::bf16}) {
      Parts parts(Algorithm::ring, divides_rows, false, type);
      CHECK(parts.communication() == TensorParallelMessages::bytes(parts.shape, C));
      const std::int64_t N = world().ranks(), rows = divides_rows && N > 1 ? bytes_of(type) * R * C : 0;
      CHECK(parts.communication() == rows + (N > 1 ? 4 * N * R : 0));
    }
}
