// The bytes that lesson 13 sends between replicas of the model state.

#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"
#include "tests/catch.hpp"
#include "tests/one_machine.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Options of nano on a mesh; micro-batches of two sequences.
MeshZeroOptions options_of(int t, int s, DType gradients = DType::f32)
{
  MeshZeroOptions options;
  options.tp = t;
  options.shard_ranks = s;
  options.micro_batch = 2;
  options.gradients = gradients;
  options.messages.collectives = "ring";
  return options;
}

Traffic sent(const MeshZeroOptions& options, RankOf rank)
{
  const ShardingPlace place = options.place(rank);
  return hybrid_traffic(offload_plan(options, rank), one_machine(place.replicas.ranks), place.replicas.rank);
}

}  // namespace

TEST_CASE("hybrid_traffic: each replica sends 2 (R-1)/R of a rank's shard in every micro-batch")
{
  for (const int R : {1, 2, 4})
    for (const int s : {1, 2})
      for (const int t : {1, 2})
        for (const DType gradients : {DType::f32, DType::bf16}) {
          const int N = R * s * t;
          const MeshZeroOptions options = options_of(t, s, gradients);
          const OffloadPlan plan = offload_plan(options, {0, N});
          const std::int64_t M = options.global_batch / (R * s * 2);
          std::int64_t bytes = 0;  // of all replicas of this shard
          for (int replica = 0; replica < R; ++replica) bytes += sent(options, {replica * s * t, N}).bytes;
          INFO("R = " << R << ", s = " << s << ", t = " << t);
          CHECK(bytes == M * 2 * (R - 1) * bytes_of(gradients) * elements_of(plan.own));
        }
}

TEST_CASE("hybrid_traffic: in exact arithmetic the second gradient of the tied embedding is a separate sum")
{
  MeshZeroOptions options = options_of(1, 2);
  const std::int64_t fast = sent(options, {0, 4}).bytes;
  options.arithmetic = Sums::exact;
  // Half of the tied tensor's V C elements is in the first shard of the embedding, which holds positions too: V C + T C
  // elements in all.
  const std::int64_t V = 256, T = 64, C = 64, M = 2;
  CHECK(sent(options, {0, 4}).bytes - fast == M * 4 * (V + T) * C / 2);
  CHECK(sent(options, {1, 4}).bytes - fast == M * 4 * (V * C - (V + T) * C / 2));
}
