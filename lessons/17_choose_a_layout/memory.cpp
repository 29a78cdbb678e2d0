#include "lessons/17_choose_a_layout/memory.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "lessons/17_choose_a_layout/sizes.hpp"
#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

namespace rankwise {

namespace {

constexpr double bucket_bytes = 2 * 5e8;  // DeepSpeed's default: 5e8 elements of 16 bits

double d(std::int64_t number)
{
  return static_cast<double>(number);
}

/// Bytes that a layer would keep without recomputation.
double whole_layer_bytes(const Job& job, PlannedLayout layout)
{
  layout.recompute = Recompute::none;
  return layer_activation_bytes(job, layout);
}

/// Micro-batches whose activations a stage keeps at once, each of 1/v of the stage, as in lesson 09.
double in_flight(const Job& job, const PlannedLayout& l, std::int64_t stage)
{
  return d(max_in_flight(l.pp, l.chunks, l.micro_batches(job.global_batch), stage));
}

/// Layers whose activations a stage keeps, over all micro-batches in flight.
double kept_layers(const Job& job, const PlannedLayout& l, std::int64_t stage)
{
  return d(job.model.layers / l.pp) / d(l.chunks) * in_flight(job, l, stage);
}

/// Why a stage needs most, if it does.
std::string why_most(const PlannedLayout& l, std::int64_t stage)
{
  if (l.pp == 1) return "no other rank needs more";
  if (stage == 0) return "the first stage has the embedding and most micro-batches in flight";
  if (stage == l.pp - 1) return "the last stage has the head and its logits";
  return fmt::format("stage {} of {} has most", stage, l.pp);
}

/// The terms of a rank of one stage.
RankMemory memory_of_stage(const Job& job, const PlannedLayout& l, std::int64_t stage)
{
  RankMemory memory;
  const double P = d(parameters_of_stage(job.model, l.tp, l.pp, stage)), t = d(l.tp);
  const double row = d(job.model.context * l.micro_batch) * d(job.model.channels);  // T b C
  const auto add = [&](const std::string& name, double bytes, const std::string& formula) {
    if (bytes > 0) memory.device.push_back({name, bytes, formula});
  };
  const double states = state_bytes(job, P, l.zero, d(l.dp));
  const double away = l.optimizer == OptimizerPlace::device ? 0 : 12 * P / d(l.dp);
  add("model states", states - away,
      fmt::format("of {:.4g} parameters{}", P, l.zero > 0 ? fmt::format("; ZeRO-{}", l.zero) : ""));
  memory.host = l.optimizer == OptimizerPlace::host ? away : 0;
  if (job.system == System::megatron && job.half_gradients)
    add("running gradients", 2 * P, "2 P, of the micro-batch");
  if (job.system == System::deepspeed && l.zero > 0)
    add("bucket", bucket_bytes, "5e8 elements, DeepSpeed's default");
  if (l.zero == 3) add("gathered layers", 4 * P / d(job.model.layers), "two layers of 2 P / L");
  add("activations", kept_layers(job, l, stage) * layer_activation_bytes(job, l),
      fmt::format("{:.4g} layers in flight, Korthikanti et al. 2022, Table 2", kept_layers(job, l, stage)));
  if (l.recompute == Recompute::full) {
    add("inputs of the stage", in_flight(job, l, stage) * 2 * row, "2 T b C for each micro-batch in flight");
    add("a layer again", whole_layer_bytes(job, l), "its activations while the backward pass computes them again");
  }
  if (l.recompute == Recompute::selective)
    add("attention again", 5 * d(job.model.heads * job.model.context) * d(job.model.context * l.micro_batch) / t,
        "5 H T T b / t");
  if (stage == l.pp - 1)
    add("logits", 4 * d(job.model.context * l.micro_batch * job.model.vocabulary) / t, "4 T b V / t, 32-bit");
  add("weight gradient", 8 * d(job.model.channels) * d(job.model.channels) / t, "8 C C / t, of the widest matrix");
  memory.why = why_most(l, stage);
  return memory;
}

/// The terms of a rank of a lesson: device memory by category.
RankMemory memory_of_rank(const Costs& costs, const std::string& why)
{
  RankMemory memory;
  memory.why = why;
  for (int i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    const std::int64_t bytes = in_tier(Tier::device, costs.most)[category];
    if (bytes > 0) memory.device.push_back({std::string(name_of(category)), d(bytes), "by the lesson's costs()"});
  }
  memory.host = d(in_tier(Tier::host, costs.most).total());
  return memory;
}

}  // namespace

double RankMemory::total() const
{
  double sum = 0;
  for (const MemoryTerm& term : device) sum += term.bytes;
  return sum;
}

double state_bytes(const Job& job, double P, int zero, double d)
{
  if (job.system == System::rankwise) {
    const double element = job.half ? 2 : 4, moments = job.half ? 12 : 8;
    return P * (element / (zero >= 3 ? d : 1) + 4 / (zero >= 2 ? d : 1) + moments / (zero >= 1 ? d : 1));
  }
  if (job.system == System::megatron) {
    const double replicated = job.half_gradients ? 4 : 6, sharded = job.half_gradients ? 16 : 12;
    return replicated * P + sharded * P / (zero > 0 ? d : 1);
  }
  const double parameters = zero >= 3 ? 2 / d : 2, gradients = zero >= 2 ? 2 / d : 2;
  return (parameters + gradients + (zero >= 1 ? 12 / d : 12)) * P;
}

double layer_activation_bytes(const Job& job, const PlannedLayout& layout)
{
  const double T = d(job.model.context), C = d(job.model.channels), t = d(layout.tp);
  const double row = T * d(layout.micro_batch) * C;
  if (layout.recompute == Recompute::full) return 2 * row;
  const double scores = layout.recompute == Recompute::none ? 5 * d(job.model.heads) * T / C / t : 0;
  return row * ((layout.sequence_parallel ? 34 / t : 10 + 24 / t) + scores);
}

std::vector<RankMemory> memory_by_stage(const Job& job, const PlannedLayout& layout, double most)
{
  std::vector<RankMemory> stages;
  std::optional<LessonRun> run;
  if (job.system == System::rankwise) run = lesson_run(job, layout);
  const int N = static_cast<int>(layout.gpus()), of_a_stage = N / static_cast<int>(layout.pp);
  for (int stage = 0; stage < layout.pp; ++stage) {
    stages.push_back(run ? memory_of_rank(run->costs({stage * of_a_stage, N}), why_most(layout, stage))
                         : memory_of_stage(job, layout, stage));
    if (stages.back().total() > most) break;
  }
  return stages;
}

double least_bytes(const Job& job, const PlannedLayout& l)
{
  const double P = d(parameters_of_stage(job.model, l.tp, l.pp, 0, l.ep)), replicas = d(l.dp * l.cp);
  const double away = l.optimizer == OptimizerPlace::device ? 0 : 12 * P / (l.zero > 0 ? replicas : 1);
  // Of each block the first stage keeps at least the input, for every micro-batch in flight; without recomputation 4 C + 12 C / t
  // numbers of a row.
  const double t = d(l.tp), numbers = l.recompute != Recompute::none ? 1
                                      : l.sequence_parallel          ? 16 / t
                                                                     : 4 + 12 / t;
  const double row = d(job.model.context * l.micro_batch * job.model.channels) / d(l.cp) * (job.half ? 2 : 4);
  const double blocks = d(job.model.layers / l.pp * std::min(l.pp, l.micro_batches(job.global_batch)));
  const double divided = l.recompute != Recompute::none && l.sequence_parallel ? t : 1;
  const double activations = job.system == System::rankwise ? blocks * row * numbers / divided : 0;
  return state_bytes(job, P, l.zero, replicas) - away + activations;
}

RankMemory largest_memory(const Job& job, const PlannedLayout& layout, double most)
{
  return std::ranges::max(memory_by_stage(job, layout, most), {}, &RankMemory::total);
}

}  // namespace rankwise
