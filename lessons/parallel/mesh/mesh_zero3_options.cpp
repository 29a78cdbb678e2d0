#include "lessons/parallel/mesh/mesh_zero3_options.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

Layout MeshZeroOptions::degrees(int N) const
{
  const int two = N % 2 == 0 ? 2 : 1;
  const int t = tp > 0 ? tp : dp > 0 ? std::max(1, N / dp) : two;
  return {.dp = dp > 0 ? dp : std::max(1, N / t), .tp = t};
}

std::vector<Axis> MeshZeroOptions::axes(int N, Stream* beside) const
{
  const auto d = static_cast<int>(degrees(N).dp), t = static_cast<int>(degrees(N).tp);
  const int s = shard_ranks > 0 ? shard_ranks : d;
  return {{"replicas", d / s, beside}, {"shard", s, beside}, {"tp", t}};
}

SplitOptions MeshZeroOptions::split(int N) const
{
  const Layout layout = degrees(N);
  return {.tp = static_cast<int>(layout.tp),
          .dp = static_cast<int>(layout.dp),
          .sequence_parallel = sequence_parallel,
          .regather = regather};
}

GatherOptions MeshZeroOptions::gather_options() const
{
  GatherOptions options = gathering;
  if (zero == 2) options.reshard = Reshard::never;
  return options;
}

Division divide(const MeshZeroOptions& options, RankOf rank)
{
  const ShardingPlace place = options.place(rank);
  const RankOf data = place.data();
  Division division = divide_batch(options, options.degrees(rank.ranks), data.rank,
                                   options.batch(options.global_batch / data.ranks));
  division.shape = divided(division.shape, options.split(rank.ranks), place.part());
  return division;
}

void declare(OptionTable& table, MeshZeroOptions& options)
{
  declare(table, static_cast<ZeroOffloadOptions&>(options));
  const std::string group = "ZeRO on a mesh";
  table.add(group, "zero", options.zero,
            "3: parameters, gradients and optimizer states are sharded; 2: parameters stay whole");
  table.add(group, "dp", options.dp, "data ranks, which divide the batch; 0: the number of ranks / --tp");
  table.add(group, "tp", options.tp,
            "ranks that divide every layer; 0: the number of ranks / --dp, or two if it is even");
  table.add(group, "shard-ranks", options.shard_ranks,
            "data ranks that share one replica of the model state, as those of a node; 0: all");
  table.add(group, "sequence-parallel", options.sequence_parallel,
            "between the divided layers each rank has 1/tp of each sequence");
  table.add(group, "regather", options.regather,
            "keep only this rank's normalised rows, and gather all again in the backward pass");
  table.add(group, "show-groups", options.show_groups, "print the coordinates and the groups of all ranks");
}

namespace {

void check_degrees(const MeshZeroOptions& options, int N)
{
  for (const auto& [name, value] :
       {std::pair("dp", options.dp), {"tp", options.tp}, {"shard-ranks", options.shard_ranks}})
    if (value < 0)
      throw UserError(fmt::format("--{}={} is not a number of ranks.", name, value),
                      "Use the number of ranks along this axis, or 0 for the default.");
  const auto d = static_cast<int>(options.degrees(N).dp), t = static_cast<int>(options.degrees(N).tp);
  check_mesh({{"dp", d}, {"tp", t}}, N);
  if (options.shard_ranks == 0 || d % options.shard_ranks == 0) return;
  throw UserError(
      fmt::format("--shard-ranks={} does not divide the {} data ranks.", options.shard_ranks, d),
      fmt::format("Each replica of the model state is shared by as many ranks as the others: use --shard-ranks={}.",
                  divisors(d)));
}

void check_stage(const MeshZeroOptions& options)
{
  if (options.zero != 2 && options.zero != 3)
    throw UserError(fmt::format("--zero={} is not one of its values.", options.zero),
                    "Use 3 to shard parameters too, or 2 to keep them whole; lesson 10 has 0 and 1.");
  if (options.zero == 3) return;
  const GatherOptions &asked = options.gathering, unchanged;
  if (asked.prefetch != unchanged.prefetch || asked.reshard != unchanged.reshard ||
      asked.persist != unchanged.persist)
    throw UserError(
        "--prefetch, --reshard and --persist say how parameters are gathered for their use, but with "
        "--zero=2 they stay whole.",
        "Leave them out, or use --zero=3.");
}

}  // namespace

void check_lesson(const MeshZeroOptions& options, int N)
{
  check_degrees(options, N);
  check_stage(options);
  check_lesson(static_cast<const ZeroOffloadOptions&>(options), N);
  check_split(options.split(N), options.config(), options.batch(1).sequence, N);
  check_algorithm(options.algorithm(), options.topology(N), options.axes(N));
}

}  // namespace rankwise
