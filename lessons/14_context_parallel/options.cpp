#include "lessons/14_context_parallel/options.hpp"

#include <fmt/format.h>

namespace rankwise {

Division divide(const ContextParallelOptions& options, RankOf rank)
{
  const int c = options.context_ranks(rank.ranks);
  const TokenRuns runs = options.runs(rank.ranks);
  const Layout layout{.dp = rank.ranks / c, .token_runs = runs.count()};
  const bool tree = Arithmetic(options.arithmetic).continues_tree();
  Division division =
      divide_batch(options, layout, rank.rank / c, options.batch(tree ? 1 : options.global_batch / layout.dp));
  division.shape.T = runs.length();
  return division;
}

void declare(OptionTable& table, ContextParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  const std::string group = "Context parallelism";
  table.add(group, "cp", options.cp, "ranks that divide each sequence; 0: all ranks");
  table.add_choice<TokenOrder>(group, "order", options.order,
                               {{"zigzag", TokenOrder::zigzag}, {"contiguous", TokenOrder::contiguous}},
                               "which runs of tokens a rank has");
  table.add_choice<AttentionBy>(group, "attention", options.attention,
                                {{"ring", AttentionBy::ring}, {"all-to-all", AttentionBy::all_to_all}},
                                "how queries meet the keys of other ranks");
}

void check_lesson(const ContextParallelOptions& options, int N)
{
  if (options.cp < 0 || (options.cp > 0 && N % options.cp != 0))
    throw UserError(
        fmt::format("--cp={} does not divide {} ranks.", options.cp, N),
        fmt::format("Groups of --cp ranks divide each sequence. Use --cp={}, or start another number of ranks.",
                    divisors(N)));
  const int c = options.context_ranks(N);
  const std::int64_t heads = options.config().heads;
  const TokenRuns runs = options.runs(N);
  if (runs.T % runs.count() != 0 || runs.T < runs.count())
    throw UserError(
        fmt::format("--sequence={} cannot be divided among {} ranks.", runs.T, c),
        fmt::format("Each rank has two of {} equal runs of tokens. Use a multiple of {}, or another --cp.",
                    runs.count(), runs.count()));
  if (options.attention == AttentionBy::all_to_all && heads % c != 0)
    throw UserError(fmt::format("--attention=all-to-all cannot divide {} heads among {} ranks.", heads, c),
                    fmt::format("Each rank computes the attention of as many heads. Use a --cp that divides {}, or "
                                "--attention=ring, which divides tokens only.",
                                heads));
  check_algorithm(options.algorithm(), options.topology(N), options.axes(N));
}

}  // namespace rankwise
