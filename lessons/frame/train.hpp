#pragma once

#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/program/report.hpp"
#include "gpt2/run_report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/finite.hpp"
#include "lessons/frame/frame.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// The frame around every lesson that trains. It reads and checks options, answers dry runs, opens the corpus, runs the loop over
/// steps, validates, samples, saves, resumes, compares with the reference run and reports. A lesson computes steps and knows
/// what its rank holds.
///
/// main() of a lesson is `return rankwise::train<rankwise::Zero3>(argc, argv);`

namespace rankwise {

/// What a lesson offers. train() calls nothing else.
///
/// Functions of the lesson's options, in its options.hpp and costs.hpp:
///
///     declare(table, options)              declares them for the command line
///     check_lesson(options, N)             throws UserError for what N ranks cannot do
///     costs(options, rank)                 what rank r of N needs and sends
///     suggest_options(options, N, bytes)   options with which the run would fit into so many bytes of the device
///
/// A lesson may also offer
///
///     owned_shards()                       of its shards() those that no other rank of its replica writes too
///     replica()                            number of the copy of the model that this rank holds shards of
///     next_token(text, number)             the token that follows a text, the same on all ranks, to generate text
///     replicated()                         parameters that are whole on every rank, to be compared
///     close()                              ends the use of what outlives the run
///     report_plan(report, options, N)      a free function: what else a dry run prints
///     prepare(options, rank)               a free function: checks and reserves what only a run needs, no dry run
// clang-format off
template <class L>
concept Lesson = requires(L lesson, OptionTable& table, typename L::Options& asked, const typename L::Options& options,
                          RankOf rank, std::int64_t number, Report& report) {
  requires std::derived_from<typename L::Options, LessonOptions>;
  requires std::constructible_from<L, Run&, const typename L::Options&>;
  { L::name } -> std::convertible_to<std::string>;            // of the program, as "06_zero3"
  { L::title } -> std::convertible_to<std::string>;           // what it shows, as "Sharded parameters (ZeRO-3, FSDP)"
  declare(table, asked);
  check_lesson(options, rank.ranks);
  { costs(options, rank) } -> std::same_as<Costs>;
  { suggest_options(options, rank.ranks, number) } -> std::same_as<std::string>;
  { lesson.train_step(number) } -> std::same_as<StepReport>;  // one optimizer step over the global batch
  { lesson.evaluate() } -> std::same_as<LossSum>;             // of the whole validation split, summed over all ranks
  { lesson.shards() } -> std::same_as<HeldShards>;            // what this rank holds: to read, and to write
  { lesson.optimizer().updates() } -> std::same_as<std::int64_t>;
  lesson.optimizer().resume(number);                          // after so many updates
  lesson.after_load();                                        // the shards have got their values: broadcast, round, gather
  { lesson.describe() } -> std::same_as<std::string>;         // how ranks and messages are arranged, in a line
  lesson.report(report);                                      // checks and figures that are this lesson's own
};
// clang-format on

/// The model on all ranks.
template <Lesson L>
ModelOnRanks model_on_ranks(L& lesson)
{
  int replica = 0;
  if constexpr (requires { lesson.replica(); }) replica = lesson.replica();
  if constexpr (requires { lesson.owned_shards(); })
    return {lesson.shards(), lesson.owned_shards(), replica};
  else
    return {lesson.shards(), lesson.shards(), replica};
}

/// Refuses what cannot be done, before anything is done.
template <Lesson L>
void check_run(const typename L::Options& options, const Session& session)
{
  const int N = ranks_of(options, session);
  check_lesson(options, N);
  check_sizes(options, N, options.layout(N), options.batch(N));
  const auto costs_of_rank = [&](RankOf rank) { return costs(options, rank); };
  const CategoryBytes most = largest_on_device(costs_of_rank, N);
  const auto suggest = [&](std::int64_t bytes) { return suggest_options(options, N, bytes); };
  check_capacity(options, most, suggest);
  if (options.dry_run) return;
  check_data(options, options.batch(N));
  if constexpr (requires { prepare(options, RankOf{}); }) prepare(options, RankOf(session));
}

/// Prints what the run would need, and allocates nothing.
template <Lesson L>
int dry_run(Report& report, const OptionTable& table, const typename L::Options& options, int N)
{
  const auto costs_of_rank = [&](RankOf rank) { return costs(options, rank); };
  begin_report(report, options.layout(N), table, options, {});
  report_plan(report, largest_on_device(costs_of_rank, N), options);
  report_planned_traffic(report, costs_of_rank({0, N}));
  report_planned_time(report, options.messages, costs_of_rank({0, N}), charged_flops(options, RankOf{0, N}));
  if constexpr (requires { report_plan(report, options, N); }) report_plan(report, options, N);
  return report.finish();
}

/// Generates `--sample` tokens, one after the other; the same text on all ranks.
template <Lesson L>
std::string sample(L& lesson, Run& run)
{
  const auto span = run.time.span(Work::compute, "sampling");
  const std::vector<Token> prompt = run.tokens.tokenizer->encode("\n");
  std::vector<Token> text = prompt;
  for (std::int64_t number = 0; number < run.options.sample; ++number)
    text.push_back(lesson.next_token(std::span<const Token>(text), number));
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return run.tokens.tokenizer->decode(text);
}

/// Trains, validates, saves and reports.
template <Lesson L>
int run_lesson(Report& report, const OptionTable& table, const typename L::Options& options, const Session& session)
{
  const int N = session.ranks();
  check_alike(table, open_corpus(options.data));
  Run run(options, session, options.batch(N), options.activation_shape(session));
  L lesson(run, options);
  const ModelOnRanks model = model_on_ranks(lesson);

  Progress progress(run, report);
  progress.begin(table, options.layout(N), lesson.describe());
  initialize(model, run);
  if (const auto updates = progress.load(model)) lesson.optimizer().resume(*updates);
  lesson.after_load();
  while (const auto step = progress.next_step()) {
    progress.make_step([&] { return lesson.train_step(*step); });
    if constexpr (requires { lesson.replicated(); }) progress.check_replicated(lesson.replicated());
    progress.after_step(model, lesson.optimizer().updates(), [&] { return lesson.evaluate(); });
  }

  progress.report_results(model);
  report_costs(report, run, costs(options, RankOf(session)));
  report_arithmetic(report, run, charged_flops(options, RankOf(session)));
  if constexpr (requires { lesson.replicated(); }) report_replicated(report, run, lesson.replicated());
  lesson.report(report);
  progress.report_times();
  if constexpr (requires(std::span<const Token> text) { lesson.next_token(text, 0); })
    if (options.sample > 0) report.comment("sample:\n" + sample(lesson, run));
  if constexpr (requires { lesson.close(); }) lesson.close();
  return progress.finish();
}

/// The whole program of a lesson.
/// @return  the exit status.
template <Lesson L>
int train(int argc, char** argv)
{
  typename L::Options options;
  OptionTable table(L::name, L::title);
  declare(table, options);
  return run_program(
      argc, argv, table, [&](const Session& session) { check_run<L>(options, session); },
      [&](const Session& session) {
        Report report(session.rank() == 0, options.report);
        const int N = ranks_of(options, session);
        begin_job(report, L::name, N);
        return options.dry_run ? dry_run<L>(report, table, options, N)
                               : run_lesson<L>(report, table, options, session);
      });
}

}  // namespace rankwise
