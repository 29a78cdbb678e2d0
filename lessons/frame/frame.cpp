#include "lessons/frame/frame.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/agreement.hpp"
#include "common/messages/job_report.hpp"
#include "common/program/placement.hpp"
#include "common/program/terminal.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "lessons/frame/instruments/recording.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

// ---- Checks ---------------------------------------------------------------------------------------------------------

int ranks_of(const LessonOptions& options, const Session& session)
{
  if (options.ranks < 0 || options.ranks > 65536)
    throw UserError(fmt::format("--ranks={} is out of range.", options.ranks), "Use 1 to 65536 ranks, or 0.");
  return options.ranks != 0 ? options.ranks : session.ranks();
}

void check_sizes(const LessonOptions& options, int N, const Division& division)
{
  if (options.check_every < 0)
    throw UserError(fmt::format("--check-every={} is out of range.", options.check_every),
                    "Use a number of steps, or 0.");
  if (!options.peak.empty() && options.peak != "measured") parse_flops(options.peak, "peak");
  check_share(options, division.layout);
  check_recording(options);
  check_options(options, division);
  const Arithmetic arithmetic(options.arithmetic);
  check_options(options.messages, default_algorithm(arithmetic), options.topology(N));
  check_order(options.algorithm(), arithmetic);
}

void check_output(const LessonOptions& options, const Session& session)
{
  if (session.ranks() > 1 && !options.prompt_file.empty() && is_stream(options.prompt_file))
    throw UserError(fmt::format("--prompt-file={} is a pipe or a device, which only one of {} ranks could read.",
                                options.prompt_file, session.ranks()),
                    "Name a file with the text of the prompt.");
  if (!options.watch) return;
  if (options.dry_run || session.ranks() == 1)
    throw UserError(fmt::format("--watch {}.", options.dry_run ? "with --dry-run" : "on one rank"),
                    "It shows which rank waits for which in a run: start several ranks, or leave --watch out.");
  if (session.rank() == 0 && !on_drawing_terminal(STDERR_FILENO))
    throw UserError(
        "--watch, but standard error is not a terminal of this machine that can draw.",
        "There is no place to draw in. Run in a terminal, on the machine of rank 0, or leave --watch out.");
}

void check_capacity(const LessonOptions& options, const CategoryBytes& most,
                    const std::function<std::string(std::int64_t)>& suggest)
{
  const std::int64_t limit = options.memory_limit.value;
  if (limit != 0 && most.total() > limit) check_memory_limit(most, limit, suggest(limit));
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.messages.transport, options.device);
  const std::int64_t capacity = capacity_of(options.device);
  if (most.total() > capacity) check_device_capacity(most, options.device, suggest(capacity));
}

void check_data(const LessonOptions& options, const OptionTable& table)
{
  Tokens tokens;
  if (!options.dry_run || !options.data.empty() || options.resume) {
    tokens = options.open_data();
    check_enough_data(options, tokens);
    if (options.epochs > 0)
      check_effects(table, options, options.schedule_over(options.sequences_of_epoch(tokens)).steps);
    check_fits_data(options, tokens);
  }
  check_checkpoints(options, tokens);
}

// ---- Costs ----------------------------------------------------------------------------------------------------------

void report_arithmetic(Report& report, const Run& run, std::int64_t formula)
{
  const VirtualStep* const last = run.messages.last_virtual_times();
  if (last == nullptr) return;
  report.check("FLOP of a step", group_digits(formula), group_digits(last->flops),
               on_all_ranks(last->flops == formula));
}

void report_costs(Report& report, const Run& run, const Costs& formula)
{
  report_memory(report, run.session, run.ledger, in_tier(Tier::device, formula.kept),
                in_tier(Tier::device, formula.most));
  report_gpu_memory(report, run.ledger, run.options.device);
  for (const SentPerStep& sent : formula.sent) {
    const auto measured = run.sent.find(sent.axis);
    report_traffic(report, sent.axis, sent.what, measured == run.sent.end() ? Traffic{} : measured->second,
                   sent.traffic, sent.formula);
    const auto counted = run.receivers.find(sent.axis);
    report_receivers(report, sent.axis,
                     counted == run.receivers.end() ? std::vector<std::int64_t>() : counted->second,
                     run.session.ranks());
  }
}

void report_replicated(Report& report, const Run& run, const Tensor& parameters)
{
  if (parameters.empty()) return;
  const std::string copy = replica_hash(*run.stream, parameters);
  report.check("replicated parameters", "the same", copy, same_on_all_ranks(copy));
}

}  // namespace rankwise
