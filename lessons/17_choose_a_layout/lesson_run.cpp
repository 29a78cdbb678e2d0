#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/17_choose_a_layout/memory.hpp"
#include "lessons/parallel/mesh/five_axes_costs.hpp"
#include "lessons/parallel/mesh/mesh_costs.hpp"
#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"

namespace rankwise {

namespace {

/// Sets the options that all lessons have in common.
template <class Options>
Options options_of(const Job& job, const PlannedLayout& layout)
{
  Options options;
  options.model = "nano";  // all of its sizes are replaced
  options.layers = job.model.layers, options.heads = job.model.heads, options.channels = job.model.channels;
  options.context = options.sequence = job.model.context;
  options.vocabulary = job.model.vocabulary;
  options.global_batch = job.global_batch, options.micro_batch = layout.micro_batch;
  options.precision = job.half ? DType::bf16 : DType::f32;
  options.device = job.device;
  options.recompute_blocks = layout.recompute == Recompute::full;
  return options;
}

/// A lesson with these options.
template <class Options>
LessonRun run_of(const std::string& lesson, const Options& options, const PlannedLayout& l, const std::string& own)
{
  std::string command = fmt::format(
      "mpirun -np {} build/lessons/{} --layers={} --heads={} --channels={} --context={} --vocabulary={} "
      "--global-batch={} --micro-batch={}{}",
      l.gpus(), lesson, options.layers, options.heads, options.channels, options.context, options.vocabulary,
      options.global_batch, options.micro_batch, own);
  if (options.device == DeviceKind::cuda) command += " --device=cuda";
  if (options.precision == DType::bf16) command += " --precision=bf16";
  if (options.recompute_blocks) command += " --recompute=block";
  if (l.sequence_parallel) command += " --sequence-parallel";
  return {command, [options](RankOf rank) { return costs(options, rank); }};
}

/// `--partition` with as many blocks in each stage; empty without a pipeline. By default the lessons balance the work of
/// stages, and the last one has fewer blocks beside the head; the model of time has equal stages, as Megatron-LM.
std::string equal_stages(std::int64_t layers, const PlannedLayout& l)
{
  if (l.pp == 1) return "";
  const std::vector<std::int64_t> blocks(static_cast<std::size_t>(l.pp * l.chunks), layers / (l.pp * l.chunks));
  return fmt::format("{}", fmt::join(blocks, ","));
}

/// Degrees and schedule on a mesh.
template <class Options>
Options on_mesh(Options options, const PlannedLayout& l)
{
  options.mesh.dp = static_cast<int>(l.dp), options.mesh.tp = static_cast<int>(l.tp);
  options.mesh.pp = static_cast<int>(l.pp);
  options.mesh.zero = l.zero, options.mesh.sequence_parallel = l.sequence_parallel;
  options.pipeline.partition = equal_stages(options.layers, l);
  if (l.chunks > 1) {
    options.pipeline.schedule = ScheduleKind::interleaved;
    options.pipeline.virtual_stages = static_cast<int>(l.chunks);
  }
  return options;
}

}  // namespace

LessonRun lesson_run(const Job& job, const PlannedLayout& l)
{
  if (l.zero >= 2) {
    auto options = options_of<MeshZeroOptions>(job, l);
    options.zero = l.zero;
    options.dp = static_cast<int>(l.dp), options.tp = static_cast<int>(l.tp);
    options.sequence_parallel = l.sequence_parallel;
    std::string own = fmt::format(" --dp={} --tp={} --zero={}", l.dp, l.tp, l.zero);
    if (l.optimizer != OptimizerPlace::device) {
      options.offload.what = Offload::optimizer;
      options.offload.tier = l.optimizer == OptimizerPlace::host ? "host" : "disk:.";
      own += " --offload=optimizer --tier=" + options.offload.tier;
    }
    return run_of("13_mesh_zero3", options, l, own);
  }
  std::string own = fmt::format(" --dp={} --tp={} --pp={} --zero={}", l.dp, l.tp, l.pp, l.zero);
  if (l.pp > 1) own += " --partition=" + equal_stages(job.model.layers, l);
  if (l.chunks > 1) own += fmt::format(" --schedule=interleaved --virtual-stages={}", l.chunks);
  const ExpertConfig& experts = job.model.experts;
  if (l.cp == 1 && experts.count == 1)
    return run_of("10_3d_parallel", on_mesh(options_of<MeshParallelOptions>(job, l), l), l, own);
  auto options = on_mesh(options_of<FiveAxesOptions>(job, l), l);
  options.cp = static_cast<int>(l.cp);
  options.ep = static_cast<int>(l.ep);
  options.experts = experts;
  own += fmt::format(" --cp={} --ep={} --experts={}", l.cp, l.ep, experts.count);
  if (experts.count > 1)
    own += fmt::format(" --experts-per-token={} --expert-every={} --capacity-factor={}", experts.per_token,
                       experts.every, experts.capacity_factor);
  return run_of("16_five_axes", options, l, own);
}

}  // namespace rankwise
