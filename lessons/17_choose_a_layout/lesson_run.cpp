#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/text.hpp"
#include "common/program/options.hpp"
#include "lessons/17_choose_a_layout/memory.hpp"
#include "lessons/parallel/mesh/five_axes_costs.hpp"
#include "lessons/parallel/mesh/mesh_costs.hpp"
#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"

namespace rankwise {

namespace {

/// A lesson, started with the options of any lesson and with @p own. Its costs are those of the options that the lesson would
/// read from this command line.
template <class Options>
LessonRun run_of(const std::string& lesson, const Job& job, const PlannedLayout& l, const std::string& own)
{
  const ModelConfig& m = job.model;
  std::string command = fmt::format(
      "build/lessons/{} --layers={} --heads={} --channels={} --context={} --vocabulary={} --global-batch={} "
      "--micro-batch={}{}",
      lesson, m.layers, m.heads, m.channels, m.context, m.vocabulary, job.global_batch, l.micro_batch, own);
  if (job.device == DeviceKind::cuda) command += " --device=cuda";
  if (job.half) command += " --precision=bf16";
  if (l.recompute == Recompute::full) command += " --recompute=block";
  if (l.sequence_parallel) command += " --sequence-parallel";

  std::vector<std::string> words = split(command, ' ');
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  Options options;
  OptionTable table(lesson, "");
  declare(table, options);
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  return {fmt::format("mpirun -np {} {}", l.gpus(), command),
          [options](RankOf rank) { return costs(options, rank); }};
}

/// `--partition` with as many blocks in each stage. By default the lessons balance the work of stages, and the last one has
/// fewer blocks beside the head; the model of time has equal stages, as Megatron-LM.
std::string equal_stages(std::int64_t layers, const PlannedLayout& l)
{
  const std::vector<std::int64_t> blocks(static_cast<std::size_t>(l.pp * l.chunks), layers / (l.pp * l.chunks));
  return fmt::format("{}", fmt::join(blocks, ","));
}

}  // namespace

LessonRun lesson_run(const Job& job, const PlannedLayout& l)
{
  if (l.zero >= 2) {
    std::string own = fmt::format(" --dp={} --tp={} --zero={}", l.dp, l.tp, l.zero);
    if (l.optimizer != OptimizerPlace::device)
      own += fmt::format(" --offload=optimizer --tier={}", l.optimizer == OptimizerPlace::host ? "host" : "disk:.");
    return run_of<MeshZeroOptions>("13_mesh_zero3", job, l, own);
  }
  std::string own = fmt::format(" --dp={} --tp={} --pp={} --zero={}", l.dp, l.tp, l.pp, l.zero);
  if (l.pp > 1) own += " --partition=" + equal_stages(job.model.layers, l);
  if (l.chunks > 1) own += fmt::format(" --schedule=interleaved --virtual-stages={}", l.chunks);
  const ExpertConfig& experts = job.model.experts;
  if (l.cp == 1 && experts.count == 1) return run_of<MeshParallelOptions>("10_3d_parallel", job, l, own);
  own += fmt::format(" --cp={} --ep={} --experts={}", l.cp, l.ep, experts.count);
  if (experts.count > 1)
    own += fmt::format(" --experts-per-token={} --expert-every={} --capacity-factor={}", experts.per_token,
                       experts.every, experts.capacity_factor);
  return run_of<FiveAxesOptions>("16_five_axes", job, l, own);
}

}  // namespace rankwise
