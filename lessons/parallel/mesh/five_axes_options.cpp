#include "lessons/parallel/mesh/five_axes_options.hpp"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/experts/experts_options.hpp"

namespace rankwise {

std::vector<Axis> FiveDegrees::axes() const
{
  return {{"pp", static_cast<int>(layout.pp)},
          {"dp", static_cast<int>(layout.dp) / ep},
          {"ep", ep},
          {"cp", cp},
          {"tp", static_cast<int>(layout.tp)}};
}

FiveDegrees FiveAxesOptions::degrees(int N) const
{
  int rest = N;  // for the degrees that are not given
  for (const int degree : {mesh.dp, mesh.tp, mesh.pp})
    if (degree > 0) rest /= degree;
  const bool all_given = mesh.dp > 0 && mesh.tp > 0 && mesh.pp > 0;
  FiveDegrees degrees;
  degrees.cp = cp > 0 ? cp : all_given ? std::max(1, rest) : rest % 2 == 0 ? 2 : 1;
  degrees.layout = mesh.layout(N / degrees.cp);
  degrees.layout.token_runs = 2 * degrees.cp;
  degrees.ep = ep > 0 ? ep : static_cast<int>(std::gcd(degrees.layout.dp, experts.count));
  return degrees;
}

Division divide(const FiveAxesOptions& options, RankOf rank)
{
  const FiveDegrees degrees = options.degrees(rank.ranks);
  const Layout& layout = degrees.layout;
  const auto dp = static_cast<int>(layout.dp), tp = static_cast<int>(layout.tp);
  const TokenRuns runs = options.runs(rank.ranks);
  const bool tree = Arithmetic(options.arithmetic).continues_tree();
  Division division = divide_batch(options, layout, rank.rank / (degrees.cp * tp) % dp,
                                   tree ? options.batch(1) : pipelined_batch(options, options.pipeline, layout));
  ActivationShape& shape = division.shape;
  shape = divided(shape, options.mesh.split(rank.ranks / degrees.cp), {rank.rank % tp, tp});
  shape.gradients = options.gradients;
  shape.T = runs.length();
  shape.token_runs = runs.count();
  shape.expert_ranks = degrees.ep;
  return division;
}

void declare(OptionTable& table, FiveAxesOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.mesh);
  declare(table, options.pipeline);
  table.add("Context parallelism", "cp", options.cp,
            "ranks that divide each sequence; 0: two if the remaining ranks are even");
  table.add_choice<TokenOrder>("Context parallelism", "order", options.order,
                               {{"zigzag", TokenOrder::zigzag}, {"contiguous", TokenOrder::contiguous}},
                               "which runs of tokens a rank has");
  declare(table, options.experts);
  table.add("Experts", "ep", options.ep,
            "of the dp ranks, those that share the experts; 0: the most that divide dp and the experts");
}

std::vector<FiveDegrees> all_degrees(int N, std::int64_t experts)
{
  std::vector<FiveDegrees> all;
  for (int c = 1; c <= N; ++c) {
    if (N % c != 0) continue;
    for (Layout layout : factorisations(N / c)) {
      layout.token_runs = 2 * c;
      for (int e = 1; e <= layout.dp; ++e)
        if (layout.dp % e == 0 && experts % e == 0) all.push_back({layout, c, e});
    }
  }
  return all;
}

namespace {

/// Refuses degrees whose product is not the number of ranks.
void check_degrees(const FiveAxesOptions& options, int N)
{
  std::vector<std::string> asked;
  std::int64_t product = 1;
  const MeshOptions& mesh = options.mesh;
  for (const auto& [name, value] :
       {std::pair("dp", mesh.dp), {"tp", mesh.tp}, {"pp", mesh.pp}, {"cp", options.cp}}) {
    if (value < 0)
      throw UserError(fmt::format("--{}={} is not a number of ranks.", name, value),
                      "Use the number of ranks along this axis, or 0 for the default.");
    if (value == 0) continue;
    asked.push_back(fmt::format("--{}={}", name, value));
    product *= value;
  }
  const bool possible = asked.size() == 4 ? product == N : N % product == 0;
  if (possible) return;
  const std::vector<FiveDegrees> all = all_degrees(N, 1);
  std::vector<std::string> texts;
  for (const FiveDegrees& d : all)
    if (texts.size() < 10) texts.push_back(fmt::format("{} {} {} {}", d.layout.dp, d.layout.tp, d.layout.pp, d.cp));
  const std::string made = asked.size() == 1   ? " does not divide"
                           : asked.size() == 4 ? fmt::format(" make {}, which are not", product)
                                               : fmt::format(" make {}, which does not divide", product);
  throw UserError(fmt::format("{}{} the {} ranks that were started.", fmt::join(asked, " "), made, N),
                  fmt::format("Degrees whose product is {}, as dp tp pp cp: {}{}.", N, fmt::join(texts, ", "),
                              texts.size() < all.size() ? ", ..." : ""));
}

/// Refuses sequences that cannot be divided into two runs for each rank, and these among tensor-parallel ranks.
void check_runs(const FiveAxesOptions& options, const FiveDegrees& degrees, const TokenRuns& runs)
{
  if (runs.T < runs.count() || runs.T % runs.count() != 0)
    throw UserError(
        fmt::format("--sequence={} cannot be divided among --cp={} ranks.", runs.T, runs.ranks),
        fmt::format("Each rank has two of {} equal runs of tokens. Use a multiple of {}, or another --cp.",
                    runs.count(), runs.count()));
  if (!options.mesh.sequence_parallel) return;
  const std::int64_t tp = degrees.layout.tp;
  if (runs.length() % tp != 0)
    throw UserError(
        fmt::format("--sequence-parallel cannot divide a run of {} tokens among --tp={} ranks.", runs.length(), tp),
        fmt::format("A sequence is {} runs. Use a --sequence that {} divides, or leave it out.", runs.count(),
                    runs.count() * tp));
  if (Arithmetic(options.arithmetic).continues_tree() && runs.count() * tp > leaves_of_a_sequence)
    throw UserError(
        fmt::format("--sequence-parallel divides a sequence into 2 cp tp = {} parts.", runs.count() * tp),
        fmt::format(
            "Where sums continue a tree, a sum over its tokens has {} leaves. Use a smaller --cp or --tp, leave it "
            "out, or use --arithmetic=fast.",
            leaves_of_a_sequence));
}

}  // namespace

void check_lesson(const FiveAxesOptions& options, int N)
{
  check_degrees(options, N);
  const FiveDegrees degrees = options.degrees(N);
  check_mesh_options(options.mesh, N / degrees.cp);
  const auto [dp, tp, pp, token_runs, uneven] = degrees.layout;
  const Division division = divide(options, {0, N});
  check_split(options.mesh.split(N / degrees.cp), options.config(), division.batch.sequence, static_cast<int>(tp));
  check_runs(options, degrees, options.runs(N));
  check_expert_ranks(options, options.ep, dp, fmt::format("--dp={}", dp), "of the dp ranks");
  check_share(options.global_batch, static_cast<int>(dp));
  check_algorithm(options.algorithm(), options.topology(N), degrees.axes());
  check_options(options, division);
  check_pipeline(options.pipeline, options.config(), static_cast<int>(pp), division.sequences.count,
                 division.micro_batches());
}

}  // namespace rankwise
