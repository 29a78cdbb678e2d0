#include "lessons/17_choose_a_layout/answers.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "gpt2/utilisation.hpp"
#include "lessons/17_choose_a_layout/plan.hpp"
#include "lessons/17_choose_a_layout/sizes.hpp"

namespace rankwise {

namespace {

constexpr std::size_t shown_layouts = 6;
constexpr double day_s = 86400, tolerated = 0.05;

std::string gigabytes(double bytes)
{
  return fmt::format("{:.2f}", bytes / 1e9);
}

std::string billions(double parameters)
{
  return fmt::format("{:.4g} B", parameters / 1e9);
}

/// Tokens of a step.
double tokens_of(const Job& job)
{
  return static_cast<double>(job.global_batch * job.model.context);
}

/// Days to train with --tokens.
double days_of(const PlannerOptions& options, const Job& job, const Plan& plan)
{
  return options.tokens / tokens_of(job) * plan.time.total() / day_s;
}

nlohmann::json json_of(const Job& job, const Plan& plan)
{
  nlohmann::json json;
  const PlannedLayout& l = plan.layout;
  json["layout"] = {{"dp", l.dp},
                    {"tp", l.tp},
                    {"pp", l.pp},
                    {"cp", l.cp},
                    {"ep", l.ep},
                    {"micro_batch", l.micro_batch},
                    {"virtual_stages", l.chunks},
                    {"recompute", name_of(l.recompute)},
                    {"zero", l.zero},
                    {"sequence_parallel", l.sequence_parallel},
                    {"optimizer", name_of(l.optimizer)}};
  json["text"] = describe(l, job.global_batch);
  json["step_s"] = plan.time.total();
  json["hidden_s"] = plan.time.hidden;
  for (const StepPart& part : step_parts()) json["time_s"][part.name] = plan.time.*part.seconds;
  json["bytes"] = plan.memory.total();
  json["host_bytes"] = plan.memory.host;
  for (const MemoryTerm& term : plan.memory.device) json["memory_bytes"][term.name] = term.bytes;
  return json;
}

/// Block "memory": each term of the rank that needs most, and their sum beside the GPU's memory.
void report_memory(Report& report, const Machine& machine, const RankMemory& memory)
{
  std::vector<Line> lines;
  for (const MemoryTerm& term : memory.device)
    lines.push_back({term.name, gigabytes(term.bytes), "", "GB, " + term.formula});
  lines.push_back({"together", gigabytes(memory.total()), "",
                   fmt::format("GB of {}; {}", gigabytes(machine.memory), memory.why)});
  if (memory.total() > 0.95 * machine.memory)
    lines.push_back(
        {"left", gigabytes(machine.memory - memory.total()), "", "GB: libraries and the allocator need some"});
  if (memory.host > 0) lines.push_back({"on the host", gigabytes(memory.host), "", "GB, the optimizer's states"});
  report.block("memory of the largest rank", lines);
}

/// Block "step": its parts, and what it makes of them.
void report_step(Report& report, const Job& job, const Plan& plan)
{
  std::vector<Line> lines;
  const double step = plan.time.total();
  for (const StepPart& part : step_parts())
    if (const double seconds = plan.time.*part.seconds; seconds > 0)
      lines.push_back(
          {part.name, fmt::format("{:.4f}", seconds), "", fmt::format("s, {:.1f} %", 100 * seconds / step)});
  lines.push_back({"step", fmt::format("{:.4f}", step), "", "s"});
  lines.push_back({"hidden", fmt::format("{:.4f}", plan.time.hidden), "", "s of messages behind computation"});
  lines.push_back({"speed", fmt::format("{:.0f}", tokens_of(job) / step), "", "tokens/s"});
  report.block("step", lines);
}

/// The counts of the field for the operations of a step.
/// @source  Korthikanti et al. 2022, appendix A, for selective recomputation.
std::vector<FlopCount> counts_of(const Job& job, const PlannedLayout& layout)
{
  const std::int64_t T = job.model.context, tokens = job.global_batch * T;
  std::vector<FlopCount> counts = flop_counts(job.model, tokens, T, layout.recompute == Recompute::full);
  if (layout.recompute != Recompute::selective) return counts;
  std::erase_if(counts, [](const FlopCount& count) { return count.name.starts_with("HFU"); });
  const double attention =
      4.0 * static_cast<double>(job.model.layers * job.model.channels * T) * static_cast<double>(tokens);
  counts.push_back({"HFU", counts[0].flops + attention, "MFU's, and attention's products again: 4 L C T a token"});
  return counts;
}

/// No layout fits: the message says what the smallest needs, and with what it would fit.
[[noreturn]] void refuse_all(const PlannerOptions& options, const Job& job, const Machine& machine)
{
  const LayoutWishes& given = options.wishes;
  const std::optional<Plan> least = smallest(job, given, machine, options.gpus);
  if (!least) {
    std::string why;
    all_layouts(job.system, job.model, given, options.gpus, job.global_batch, machine.gpus_per_node, &why);
    throw UserError(fmt::format("No layout of {} GPUs has these options: {}.", options.gpus, why),
                    "Leave out what is not needed, it is searched for; or use another --global-batch.");
  }
  const std::string needs = fmt::format("The layout that needs least, {}, needs {} GB of a GPU that has {} GB.",
                                        describe(least->layout, job.global_batch), gigabytes(least->memory.total()),
                                        gigabytes(machine.memory));
  LayoutWishes free;
  free.optimizer = "search";
  const std::vector<Plan> other = fastest(job, free, machine, options.gpus, 1);
  throw UserError(fmt::format("No such layout of {} GPUs fits. {}", options.gpus, needs),
                  other.empty() ? "Use more GPUs (--question=fewest-gpus says how many) or a smaller model."
                                : fmt::format("This one fits: {}.", describe(other[0].layout, job.global_batch)));
}

/// The fastest layouts that fit.
/// @throws UserError  if there is none.
std::vector<Plan> found(const PlannerOptions& options, const Job& job, const Machine& machine)
{
  std::vector<Plan> plans = fastest(job, options.wishes, machine, options.gpus, shown_layouts);
  if (plans.empty()) refuse_all(options, job, machine);
  return plans;
}

/// The fastest layout of another number of GPUs, if one fits; the batch stays the same.
std::optional<Plan> on_gpus(const PlannerOptions& options, const Job& job, const Machine& machine,
                            std::int64_t gpus)
{
  std::vector<Plan> plans = fastest(job, options.wishes, machine, gpus, 1);
  return plans.empty() ? std::nullopt : std::optional(plans[0]);
}

/// Numbers of GPUs: powers of two of a node and of GPUs below it, and one and a half times as many.
std::vector<std::int64_t> numbers_of_gpus(std::int64_t node, std::int64_t most)
{
  std::vector<std::int64_t> all;
  for (std::int64_t gpus = 1; gpus < node; gpus *= 2) all.push_back(gpus);
  for (std::int64_t nodes = 1; nodes * node <= most; nodes *= 2) {
    all.push_back(nodes * node);
    if (nodes > 1 && 3 * nodes / 2 * node <= most) all.push_back(3 * nodes / 2 * node);
  }
  return all;
}

/// Prints a plan: memory, the step, utilisation, the days of a training run, and the lesson that runs it.
void report_plan(Report& report, const PlannerOptions& options, const Job& job, const Machine& machine,
                 const Plan& plan)
{
  report.comment("layout: " + describe(plan.layout, job.global_batch));
  report_memory(report, machine, plan.memory);
  report_step(report, job, plan);
  const double peak = (job.half ? machine.half : machine.single) * static_cast<double>(plan.layout.gpus());
  report_utilisation(report, counts_of(job, plan.layout), plan.time.total(), peak,
                     static_cast<int>(plan.layout.gpus()), machine.name);
  const double days = days_of(options, job, plan);
  report.block(
      fmt::format("training with {:.4g} tokens", options.tokens),
      {{"time", fmt::format("{:.2f}", days), "", "days"},
       {"GPU hours", fmt::format("{:.4g}", days * 24 * static_cast<double>(plan.layout.gpus())), "", "h"}});
  report.json()["plan"] = json_of(job, plan);
  report.json()["plan"]["days"] = days;
  for (const RankMemory& stage : memory_by_stage(job, plan.layout))
    report.json()["plan"]["stage_bytes"].push_back(stage.total());
  if (job.system == System::rankwise) report.comment("run it: " + lesson_run(job, plan.layout).command);
}

void answer_layout(Report& report, const PlannerOptions& options, const Machine& machine)
{
  const Job job = options.job(machine);
  const std::vector<Plan> plans = found(options, job, machine);
  report_plan(report, options, job, machine, plans[0]);
  std::vector<Line> lines;
  for (const Plan& plan : plans) {
    report.json()["layouts"].push_back(json_of(job, plan));
    if (&plan != plans.data())
      lines.push_back({describe(plan.layout, job.global_batch), fmt::format("{:.4f}", plan.time.total()), "",
                       "s, " + reason(plans[0], plan)});
  }
  if (!lines.empty()) report.block("the next ones", lines);
}

void answer_largest_model(Report& report, const PlannerOptions& options, const Machine& machine)
{
  Job job = options.job(machine);
  std::vector<Line> lines;
  std::optional<Plan> best;
  std::vector<ModelConfig> models = planned_presets();
  std::ranges::sort(models, {}, &ModelConfig::parameters);
  for (const ModelConfig& model : models) {
    job.model = model;
    const auto plan = on_gpus(options, job, machine, options.gpus);
    lines.push_back({model.name, billions(static_cast<double>(model.parameters())), "",
                     plan ? fmt::format("fits: {}, {:.4g} s a step", describe(plan->layout, job.global_batch),
                                        plan->time.total())
                          : "does not fit"});
    if (plan) best = plan;
    report.json()["models"].push_back({{"name", model.name}, {"fits", plan.has_value()}});
  }
  report.block(fmt::format("models on {} GPU{}", options.gpus, options.gpus == 1 ? "" : "s"), lines);

  // The shape of --model, with as many layers as fit: in steps of the layers that pipelines divide well.
  job.model = options.model.config();
  std::int64_t least = 0, most = 8192;  // layers that fit, and that do not
  while (most - least > 8) {
    job.model.layers = (least + most) / 16 * 8;
    (any_fits(job, options.wishes, machine, options.gpus) ? least : most) = job.model.layers;
  }
  if (least == 0) throw UserError("Not even 8 layers of this shape fit.", "Use a smaller --channels or more GPUs.");
  job.model.layers = least;
  const Plan plan = *on_gpus(options, job, machine, options.gpus);
  report.comment(fmt::format("largest of this shape, in steps of 8 layers: {} layers, {} parameters", least,
                             billions(static_cast<double>(job.model.parameters()))));
  report_plan(report, options, job, machine, plan);
  report.json()["largest_layers"] = least;
}

void answer_fewest_gpus(Report& report, const PlannerOptions& options, const Machine& machine)
{
  const Job job = options.job(machine);
  for (const std::int64_t gpus : numbers_of_gpus(machine.gpus_per_node, 65536)) {
    const auto plan = on_gpus(options, job, machine, gpus);
    if (!plan || (options.days > 0 && days_of(options, job, *plan) > options.days)) continue;
    report.comment(fmt::format("fewest GPUs: {}{}", gpus,
                               options.days > 0 ? fmt::format(", to train within {:g} days", options.days) : ""));
    report_plan(report, options, job, machine, *plan);
    report.json()["fewest_gpus"] = gpus;
    return;
  }
  throw UserError("No number of GPUs up to 65536 is enough.",
                  "Use a larger --global-batch, which more replicas can share, more --days, or a smaller model.");
}

void answer_days(Report& report, const PlannerOptions& options, const Machine& machine)
{
  const Job job = options.job(machine);
  const Plan plan = found(options, job, machine)[0];
  report_plan(report, options, job, machine, plan);
  std::vector<Line> lines;
  for (const std::int64_t gpus : {options.gpus / 4, options.gpus / 2, 2 * options.gpus, 4 * options.gpus}) {
    const auto other = gpus > 0 ? on_gpus(options, job, machine, gpus) : std::nullopt;
    if (other)
      lines.push_back({fmt::format("{} GPUs", gpus), fmt::format("{:.2f}", days_of(options, job, *other)), "",
                       "days with " + describe(other->layout, job.global_batch)});
  }
  report.block("with other numbers of GPUs", lines);
}

void answer_bandwidth(Report& report, const PlannerOptions& options, const Machine& machine)
{
  const Job job = options.job(machine);
  const auto step_with = [&](double factor) {
    Machine other = machine;
    other.network.value *= factor;
    const auto plan = on_gpus(options, job, other, options.gpus);
    return plan ? plan->time.total() : HUGE_VAL;
  };
  const Plan plan = found(options, job, machine)[0];
  report_plan(report, options, job, machine, plan);
  const double best = step_with(1e6);
  std::vector<Line> lines;
  for (const double factor : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    const double step = step_with(factor);
    lines.push_back({show_value(Quantity{"B/s", machine.network * factor}), fmt::format("{:.4f}", step), "",
                     fmt::format("s, {:+.1f} % of that without a limit", 100 * (step / best - 1))});
    report.json()["networks"].push_back({{"bytes_per_s", machine.network * factor}, {"step_s", step}});
  }
  report.block("step by the network of a node, with the best layout each", lines);
  double slow = 1e-6, fast = 1e6;  // bisected in the logarithm
  while (fast / slow > 1.02) {
    const double middle = std::sqrt(slow * fast);
    (step_with(middle) <= best * (1 + tolerated) ? fast : slow) = middle;
  }
  if (options.gpus <= machine.gpus_per_node) return report.comment("one node: no message uses the network");
  const bool enough = fast <= 1.02;
  report.comment(fmt::format("{} of a node cost at most {:.0f} %: the network is {}",
                             show_value(Quantity{"B/s", machine.network * fast}), 100 * tolerated,
                             enough ? "enough" : "too slow"));
  report.json()["enough_bytes_per_s"] = machine.network * fast;
}

}  // namespace

void answer(Report& report, const PlannerOptions& options, const Machine& machine)
{
  switch (options.question) {
    case Question::layout:
      return answer_layout(report, options, machine);
    case Question::largest_model:
      return answer_largest_model(report, options, machine);
    case Question::fewest_gpus:
      return answer_fewest_gpus(report, options, machine);
    case Question::days:
      return answer_days(report, options, machine);
    case Question::bandwidth:
      return answer_bandwidth(report, options, machine);
  }
}

}  // namespace rankwise
