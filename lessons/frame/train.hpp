#pragma once

#include <concepts>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/files/output_file.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/placement.hpp"
#include "common/program/report.hpp"
#include "gpt2/prompt.hpp"
#include "gpt2/run_report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/finite.hpp"
#include "lessons/frame/frame.hpp"
#include "lessons/frame/instruments/elastic.hpp"
#include "lessons/frame/instruments/recording.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/frame/progress.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/frame/shards.hpp"

/// @file
/// The frame around every lesson that trains. It reads and checks options, performs dry runs, opens the corpus,
/// runs the training loop, validates, samples, saves, resumes, compares with the reference run and reports. A
/// lesson computes the steps and describes the shards of its rank.
///
/// main() of a lesson is `return rankwise::train<rankwise::Zero3>(argc, argv);`

namespace rankwise {

/// The interface of a lesson. train() calls nothing else.
///
/// Functions of the lesson's options, declared beside these and beside its costs:
///
///     declare(table, options)              declares them for the command line
///     check_lesson(options, N)             throws UserError if N ranks cannot run with these options
///     divide(options, rank)                what rank r of N computes in a step; the default is data parallelism
///     costs(options, rank)                 memory and traffic of rank r of N
///     suggest_options(options, N, bytes)   options with which the run would fit into `bytes` of device memory
///
/// Optional:
///
///     owned_shards()                       shards() without those that another rank of the replica owns
///     replica()                            number of the replica of the model to which this rank belongs
///     next_token(text, number)             the next token of a text, the same on all ranks, to generate text
///     replicated()                         parameters that every rank has whole, to be compared
///     report(report)                       further checks and figures of this lesson
///     close()                              releases resources that outlive the run, as files
///     effects_of(options)                  free function: options of the lesson, and whether they do something
///     report_plan(report, options, N)      free function: prints more of a dry run; with a further argument, a function
///                                          that rehearses a step of other options and returns its seconds
///     without_files(options)               free function: the options of a run with the same messages and without files
///     prepare(options, rank)               free function: checks what these ranks need, and reserves it for a run
// clang-format off
template <class L>
concept Lesson = requires(L lesson, OptionTable& table, typename L::Options& asked, const typename L::Options& options,
                          RankOf rank, std::int64_t number) {
  requires std::derived_from<typename L::Options, LessonOptions>;
  requires std::constructible_from<L, Run&, const typename L::Options&>;
  { L::name } -> std::convertible_to<std::string>;            // name of the program, as "06_zero3"
  { L::title } -> std::convertible_to<std::string>;           // title, as "Sharded parameters (ZeRO-3, FSDP)"
  declare(table, asked);
  check_lesson(options, rank.ranks);
  { divide(options, rank) } -> std::same_as<Division>;
  { costs(options, rank) } -> std::same_as<Costs>;
  { suggest_options(options, rank.ranks, number) } -> std::same_as<std::string>;
  { lesson.train_step(number) } -> std::same_as<StepReport>;  // one optimizer step over the global batch
  { lesson.evaluate().mean() } -> std::same_as<double>;       // loss of the validation split, of all ranks
  { lesson.shards() } -> std::same_as<HeldShards>;            // shards that this rank holds, to read and to write
  { lesson.optimizer().updates() } -> std::same_as<std::int64_t>;
  lesson.optimizer().resume(number);                          // continues after this number of updates
  lesson.after_load();                                        // shards have values now: broadcast, round, gather
  { lesson.describe() } -> std::same_as<std::string>;         // layout of ranks and messages, in one line
};
// clang-format on

/// This rank's shards of the model.
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

/// Refuses options with which N ranks cannot run.
template <Lesson L>
void check_ranks(const typename L::Options& options, int N)
{
  check_lesson(options, N);
  check_sizes(options, N, divide(options, RankOf{0, N}));
  const auto suggest = [&](std::int64_t bytes) { return suggest_options(options, N, bytes); };
  check_capacity(options, largest_on_device(options, N), suggest);
  check_virtual_time(options.messages, options.last_step(0), charged_flops(options, RankOf{0, N}),
                     costs(options, RankOf{0, N}));
}

/// Refuses invalid options before anything is allocated or sent, and reads the prompt.
template <Lesson L>
void check_run(typename L::Options& options, const OptionTable& table, const Session& session)
{
  constexpr std::int64_t any_number = std::numeric_limits<std::int64_t>::max();
  check_ranges(options);
  if (!options.dry_run) start_threads(options.threads);  // before the first buffer is filled
  check_effects(table, options, options.epochs > 0 ? any_number : options.schedule_over(0).steps);
  if constexpr (requires { effects_of(options); }) table.check_effects(effects_of(options));
  check_ranks<L>(options, ranks_of(options, session));
  check_elastic(options, ranks_of(options, session));
  check_output(options, session);
  take_prompt(options);
  check_data(options, table);
  if constexpr (requires { prepare(options, RankOf{}); })
    if (options.ranks == 0) prepare(options, RankOf(session));
}

/// The work of each of N ranks in two steps. They are not started: this process plays them one after the other, with the
/// code that a run executes.
/// @param options  with --link.
template <Lesson L>
std::vector<StepScript> rehearse(const typename L::Options& options, int N)
{
  typename L::Options played = options;
  if constexpr (requires { without_files(options); }) played = without_files(options);
  played.memory_limit.value = 0;  // a run that does not fit has a time, too
  std::vector<StepScript> scripts(static_cast<std::size_t>(N));
  for (int r = 0; r < N; ++r) {
    const Session session(RankOf{r, N});
    const Rehearsal part(session, scripts[static_cast<std::size_t>(r)]);
    Run run(played, session, divide(played, RankOf{r, N}));
    L lesson(run, played);
    lesson.after_load();
    // Two steps: the first begins while some ranks still wait for parameters, the second as every later one does.
    for (std::int64_t step = 0; step < 2; ++step) {
      run.messages.begin_step();
      lesson.train_step(step);
      run.messages.end_step();
    }
    scripts[static_cast<std::size_t>(r)].peak_bytes = run.ledger.peak(Tier::device).total();
  }
  return scripts;
}

/// Prints memory and traffic of the run from its sizes alone, and with --link the time of a rehearsed step.
template <Lesson L>
int dry_run(Report& report, const OptionTable& table, const typename L::Options& options, const Session& session)
{
  const int N = ranks_of(options, session);
  const auto costs_of_rank = [&](RankOf rank) { return costs(options, rank); };
  begin_report(report, divide(options, RankOf{0, N}).layout, table, options, {});
  report_plan(report, largest_on_device(options, N), options);
  report_planned_traffic(report, costs_of_rank({0, N}));
  if (!options.messages.link.empty()) {
    const std::vector<StepScript> scripts = rehearse<L>(options, N);
    report_planned_time(report, options.messages, scripts);
    if (session.rank() == 0 && !options.script.empty()) write_scripts(options.script, scripts);
  }
  enter_plan(
      report, options.config(), costs_of_rank, [&](RankOf rank) { return charged_flops(options, rank); }, N);
  if constexpr (requires { report_plan(report, options, N); }) report_plan(report, options, N);
  const auto step_seconds = [](const typename L::Options& other, int ranks) {
    return longest_step_s(replay(rehearse<L>(other, ranks), parse_link(other.messages.link)));
  };
  if constexpr (requires { report_plan(report, options, N, step_seconds); })
    report_plan(report, options, N, step_seconds);
  return report.finish();
}

/// Generates `--samples` texts of `--sample` tokens, one token after the other; the same texts on all ranks.
template <Lesson L>
void report_samples(Report& report, L& lesson, Run& run, Progress& progress)
{
  const auto span = run.time.span(Work::compute, "sampling");
  const LessonOptions& o = run.options;
  const Tokenizer& tokenizer = *run.tokens.tokenizer;
  const std::vector<Token> prompt = prompt_of(o, tokenizer);
  const std::optional<Token> stop = stop_token(o, tokenizer);
  for (std::int64_t n = 0; n < o.samples && !progress.asked_to_stop(); ++n) {
    std::vector<Token> text = prompt;
    for (std::int64_t i = 0; i < o.sample && (i == 0 || (text.back() != stop && !progress.asked_to_stop())); ++i)
      text.push_back(lesson.next_token(std::span<const Token>(text), n * o.sample + i));
    // The line end that a sample begins with if there is no prompt is not printed.
    const bool prompted = !o.prompt.empty() || !o.prompt_file.empty();
    const std::span<const Token> shown = std::span<const Token>(text).subspan(prompted ? 0 : prompt.size());
    const std::string title = o.samples == 1 ? "sample" : "sample " + std::to_string(n + 1);
    report.comment(title + ":\n" + tokenizer.decode(shown));
  }
}

/// The text that a run prints at its end.
template <Lesson L>
void report_run(Report& report, L& lesson, const typename L::Options& options, const ModelOnRanks& model, Run& run,
                Progress& progress)
{
  progress.report_results(model);
  if (!options.elastic || progress.has_stepped()) {
    report_costs(report, run, costs(options, RankOf(run.session)));
    report_arithmetic(report, run, charged_flops(options, RankOf(run.session)));
  }
  if constexpr (requires { lesson.replicated(); }) report_replicated(report, run, lesson.replicated());
  if constexpr (requires { lesson.report(report); }) lesson.report(report);
  progress.report_times();
  if constexpr (requires(std::span<const Token> text) { lesson.next_token(text, 0); })
    if (options.sample > 0) report_samples(report, lesson, run, progress);
}

/// The state of the model on these ranks: from the seed, from a file, or from the shards kept as a rank died.
template <Lesson L>
void set_state(L& lesson, const ModelOnRanks& model, Run& run, Progress& progress, Survivors& survivors)
{
  std::optional<std::int64_t> updates;
  if (run.options.elastic) updates = survivors.restore(run, model.held);
  if (!updates) {
    initialize(model, run);
    updates = progress.load(model);
  }
  if (updates) lesson.optimizer().resume(*updates);
  lesson.after_load();
}

/// Notes the gradients that each update is made with, of all shards at once or block by block.
template <Lesson L>
void note_sums(L& lesson, Run& run, const HeldShards& held)
{
  if constexpr (requires { lesson.optimizer().before_update(BeforeUpdate()); })
    lesson.optimizer().before_update(
        [&](const std::vector<Tensor>& gradients, const AdamWStep&) { record_sums(run, held, gradients); });
  else if constexpr (requires { lesson.optimizer().before_block(nullptr); })
    lesson.optimizer().before_block([&](Range elements, const Tensor& gradients) {
      run.recorder->shard(StepPhase::sums, State::parameter, held.table, elements, gradients);
    });
}

/// With --elastic: copies of the shards of other ranks here, to which gradients are sent before each update; else null.
template <Lesson L>
std::unique_ptr<Copies> copy_shards(L& lesson, Run& run, const HeldShards& held, Report& report,
                                    Survivors& survivors)
{
  if constexpr (requires { lesson.optimizer().before_update(BeforeUpdate()); }) {
    if (run.options.elastic) {
      auto copies = std::make_unique<Copies>(run, held, run.options.copies);
      copies->fill();
      survivors.done(report, run.session);
      lesson.optimizer().before_update([&all = *copies](const std::vector<Tensor>& gradients,
                                                        const AdamWStep& step) { all.commit(gradients, step); });
      return copies;
    }
  }
  return nullptr;
}

/// Trains, validates, saves and reports on the ranks that are alive.
/// @throws RankFailure  when one of them dies; @p survivors holds the state from which the living ranks continue.
template <Lesson L>
int train_on_ranks(Report& report, const OptionTable& table, const typename L::Options& options,
                   const Session& session, Survivors& survivors)
{
  // Every lesson gets a device, ledgers, groups of ranks and text. The lesson allocates its part of the model.
  const Division division = divide(options, RankOf(session));
  Run run(options, session, division);
  L lesson(run, options);
  const ModelOnRanks model = model_on_ranks(lesson);
  Progress progress(run, report, survivors.reached);
  if (!survivors.has_state()) progress.begin(table, division.layout, lesson.describe());

  // Parameters and moments come from the seed, from a file, or from the ranks that survived another's death.
  set_state(lesson, model, run, progress, survivors);
  if (run.recorder) note_sums(lesson, run, model.held);
  const std::unique_ptr<Copies> copies = copy_shards(lesson, run, model.held, report, survivors);
  const std::int64_t updates_before = lesson.optimizer().updates() - survivors.reached.steps();
  try {
    for (std::int64_t step = progress.first_step(); step < progress.last_step(); ++step) {
      // All ranks compute their sequences of the global batch, sum gradients and update the parameters.
      if (progress.begin_step(step)) progress.end_step(lesson.train_step(step), model.held);
      // Every --check-every steps, ranks compare the parameters that all of them have.
      if constexpr (requires { lesson.replicated(); }) progress.check_replicated(lesson.replicated());
      // Every --evaluate-every steps and after the last, the loss of the validation split is measured.
      if (progress.validation_is_due()) progress.validate([&] { return lesson.evaluate().mean(); });
      // Every --checkpoint-every steps, after the last and before a stop, the model is saved.
      if (progress.save_is_due()) progress.save(model, lesson.optimizer().updates());
      progress.settle(model);
    }
    report_run(report, lesson, options, model, run, progress);
    if (copies) copies->agree();
  } catch (const RankFailure&) {
    survivors.keep(copies.get(), lesson.optimizer().updates(), updates_before, run.checked);
    throw;
  } catch (...) {
    progress.tell_failure();
    throw;
  }
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
      argc, argv, table,
      [&](const Session& session) {
        take_initial_sizes(options, table);
        check_run<L>(options, table, session);
      },
      [&](Session& session) {
        check_alike(table);
        Report report(session.rank() == 0, options.report);
        begin_job(report, L::name, ranks_of(options, session));
        if (options.dry_run) return dry_run<L>(report, table, options, session);
        Survivors survivors;
        return survivors.run(
            session, report, options, [&] { check_ranks<L>(options, session.ranks()); },
            [&] { return train_on_ranks<L>(report, table, options, session, survivors); });
      });
}

}  // namespace rankwise
