// The norm of lesson 04: it is that of all elements, however they are sharded.

#include <cmath>
#include <limits>

#include "lessons/parallel/zero/sharded_norm.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// A rank's elements, in @p pieces pieces, so that each element is owned by one rank.
std::vector<Tensor> shares(const Tensor& all, int rank, int ranks, int pieces)
{
  std::vector<Tensor> own;
  for (int piece = 0; piece < pieces; ++piece) {
    const Range run = Partition(all.elements(), pieces).shard(piece);
    const Range mine = Partition(run.count, ranks).shard(rank);
    own.push_back(all.slice({run.first + mine.first, mine.count}));
  }
  return own;
}

}  // namespace

TEST_CASE("squared_norm: the sum of the squares of the elements of all ranks, in any pieces, to the last bit")
{
  GroupForTest test(Algorithm::ring);
  Laboratory lab;
  const Tensor all = lab.filled(DType::f32, {1001}, 5, 3);
  const double expected = lab.kernels()->squared_norm(all).value();
  for (const int pieces : {1, 2, 3, 40, 500}) {
    INFO("pieces = " << pieces);
    const std::vector<Tensor> own = shares(all, world().rank(), world().ranks(), pieces);
    CHECK(squared_norm(lab.kernels(), own, test.group) == expected);
  }
}

TEST_CASE("squared_norm: one element that is not finite on one rank is noticed on all")
{
  GroupForTest test(Algorithm::ring);
  Laboratory lab;
  const Tensor own = lab.filled(DType::f32, {10}, 5);
  if (world().rank() == world().ranks() - 1) own.span<float>()[7] = std::numeric_limits<float>::infinity();
  CHECK(std::isnan(squared_norm(lab.kernels(), {own}, test.group)));
}
