#include "lessons/parallel/experts/experts_options.hpp"

#include <numeric>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

int ExpertParallelOptions::expert_ranks(int N) const
{
  return ep > 0 ? ep : static_cast<int>(std::gcd(std::int64_t{N}, experts.count));
}

std::vector<Axis> ExpertParallelOptions::axes(int N) const
{
  return {{"replicas", N / expert_ranks(N)}, {"experts", expert_ranks(N)}};
}

Range ExpertParallelOptions::experts_of(RankOf rank) const
{
  const std::int64_t e = expert_ranks(rank.ranks), here = experts.count / e;
  return {rank.rank % e * here, here};
}

Division divide(const ExpertParallelOptions& options, RankOf rank)
{
  const int N = rank.ranks;
  Division division = divide_batch(options, {.dp = N}, rank.rank, options.cut_batch(N));
  division.shape.expert_ranks = options.expert_ranks(N);
  return division;
}

void declare(OptionTable& table, ExpertConfig& experts)
{
  const std::string group = "Experts";
  table.add(group, "experts", experts.count, "experts of a block that has experts; 1: the dense model");
  table.add(group, "experts-per-token", experts.per_token, "experts that compute each token (top-k)");
  table.add(group, "expert-every", experts.every, "n: the last of every n blocks has experts");
  table.add(group, "capacity-factor", experts.capacity_factor,
            "an expert takes this many times its equal share of a sequence, and drops the rest; 0: drops nothing");
  table.add(group, "auxiliary-loss", experts.auxiliary_loss, "weight of the loss that favours equal loads");
}

void declare(OptionTable& table, ExpertParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.experts);
  table.add("Experts", "ep", options.ep,
            "ranks that share the experts; 0: the most that divide the ranks and the experts");
}

void check_expert_ranks(const TrainingOptions& options, int ep, std::int64_t ranks, const std::string& named,
                        const std::string& whose)
{
  const std::int64_t E = options.experts.count;
  if (ep < 0 || (ep > 0 && (ranks % ep != 0 || E % ep != 0)))
    throw UserError(fmt::format("--ep={} does not divide {} and {} experts.", ep, named, E),
                    fmt::format("Groups of --ep {} hold all experts, each rank as many as the others. Use --ep={}.",
                                whose, divisors(std::gcd(ranks, E))));
  if (options.recompute_blocks && E > 1)
    throw UserError(fmt::format("--recompute=block cannot be combined with --experts={}.", E),
                    "A second forward pass would send all rows a second time. Leave it out, or use a smaller "
                    "--micro-batch.");
}

void check_lesson(const ExpertParallelOptions& options, int N)
{
  check_expert_ranks(options, options.ep, N, fmt::format("{} ranks", N), "ranks");
  check_algorithm(options.algorithm(), options.topology(N), options.axes(N));
}

}  // namespace rankwise
