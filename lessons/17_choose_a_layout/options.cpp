#include "lessons/17_choose_a_layout/options.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "lessons/frame/options.hpp"

namespace rankwise {

namespace {

/// The values of an option, as pairs for OptionTable.
std::vector<std::pair<std::string, std::string>> words(const std::vector<std::string>& all)
{
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : all) pairs.emplace_back(word, word);
  return pairs;
}

void declare(OptionTable& table, LayoutWishes& wishes)
{
  table.add("Layout", "dp", wishes.dp, "replicas; 0: searched for");
  table.add("Layout", "tp", wishes.tp, "ranks that divide every layer; 0: searched for, within a node");
  table.add("Layout", "pp", wishes.pp, "stages of the pipeline; 0: searched for");
  table.add("Layout", "cp", wishes.cp, "ranks that divide every sequence; 0: searched for");
  table.add("Layout", "ep", wishes.ep, "replicas that share the experts; 0: searched for");
  table.add("Layout", "micro-batch", wishes.micro_batch,
            "sequences of a micro-batch; 0: 1, 2, 4, 8 and 16 are tried");
  table.add("Layout", "virtual-stages", wishes.chunks, "stages of a rank; 0: searched for");
  table.add_choice("Layout", "recompute", wishes.recompute, words({"search", "none", "selective", "full"}),
                   "which activations are computed again");
  table.add_choice("Layout", "zero", wishes.zero, words({"search", "0", "1", "2", "3"}), "stage of ZeRO");
  table.add_choice("Layout", "sequence-parallel", wishes.sequence_parallel, words({"search", "off", "on"}),
                   "whether the rows between divided layers are divided, too");
  table.add_choice("Layout", "optimizer", wishes.optimizer, words({"device", "host", "disk", "search"}),
                   "where the optimizer is");
}

}  // namespace

Job PlannerOptions::job(const Machine& used) const
{
  Job job;
  job.model = model.config();
  job.global_batch = global_batch > 0 ? global_batch : std::max<std::int64_t>(512, gpus);
  job.system = system;
  job.device = used.device;
  job.half = type != PlannedType::f32;
  job.half_gradients = type == PlannedType::fp16;
  return job;
}

void declare(OptionTable& table, PlannerOptions& o)
{
  declare(table, o.model);
  table.add("Run", "global-batch", o.global_batch, "sequences of a step; 0: 512, or one for each GPU");
  table.add_choice("Run", "precision", o.type,
                   {{"bf16", PlannedType::bf16}, {"fp16", PlannedType::fp16}, {"f32", PlannedType::f32}},
                   "type of parameters and activations; with fp16 gradients have it, too");
  table.add_choice(
      "Run", "system", o.system,
      {{"rankwise", System::rankwise}, {"megatron", System::megatron}, {"deepspeed", System::deepspeed}},
      "whose program: they keep and send different things");
  table.add_file("Machine", "machine", o.machine, FileUse::read, "file that describes the machine");
  table.add("Machine", "gpus", o.gpus, "number of GPUs");
  declare(table, o.wishes);
  table.add_choice("Question", "question", o.question,
                   {{"layout", Question::layout},
                    {"largest-model", Question::largest_model},
                    {"fewest-gpus", Question::fewest_gpus},
                    {"days", Question::days},
                    {"bandwidth", Question::bandwidth}},
                   "what is asked");
  table.add("Question", "tokens", o.tokens, "tokens of the training run");
  table.add("Question", "days", o.days, "days within which it has to end, for fewest-gpus; 0: any");
  table.add_file("Calibration", "calibrate", o.calibrate, FileUse::read, "measured steps to fit the constants to");
  table.add_file("Calibration", "check", o.check, FileUse::read, "measured steps to compare with");
  table.add("Calibration", "rows", o.rows, "rows to fit the constants to, at most 10");
  table.add("Calibration", "only", o.measured.only, "rows that contain this text; empty: all");
  table.add("Calibration", "skip", o.measured.skip, "rows that contain one of these words are left out");
  table.add_choice("Calibration", "measured-with", o.measured.recompute, words({"none", "selective", "full"}),
                   "recomputation of rows that do not say it");
  table.add_file("Report", "report", o.report, FileUse::print, "where to write the report");
}

void check_options(const PlannerOptions& o, const OptionTable& table, const Session& session)
{
  const auto refuse = [](const std::string& what, const std::string& remedy) { throw UserError(what, remedy); };
  if (session.ranks() > 1)
    refuse(fmt::format("the planner is one process; {} were started.", session.ranks()),
           "Start it without mpirun; --gpus is the number of GPUs that it plans for.");
  if (o.machine.empty())
    refuse("--machine is missing.",
           "Name a machine file, as --machine=lessons/17_choose_a_layout/machines/a100-80gb-sxm.conf.");
  if (o.gpus < 1 || o.gpus > 65536)
    refuse(fmt::format("--gpus={} is not from 1 to 65536.", o.gpus), "Use --gpus=8.");
  const LayoutWishes& w = o.wishes;
  for (const auto& [name, value] : {std::pair("dp", w.dp),
                                    {"tp", w.tp},
                                    {"pp", w.pp},
                                    {"cp", w.cp},
                                    {"ep", w.ep},
                                    {"micro-batch", w.micro_batch},
                                    {"virtual-stages", w.chunks},
                                    {"global-batch", o.global_batch}})
    if (value < 0)
      refuse(fmt::format("--{}={} is not a number.", name, value), "Use 1 or more, or 0 for the default.");
  const std::int64_t most = o.question == Question::fewest_gpus ? 65536 : o.gpus;
  for (const std::int64_t degree : {w.dp, w.tp, w.pp, w.cp, w.ep})
    if (degree > most)
      refuse(fmt::format("{} ranks along an axis are more than {} GPUs.", degree, most), "Use smaller degrees.");
  if (o.global_batch > 1'000'000'000)
    refuse(fmt::format("--global-batch={} is above 10^9.", o.global_batch), "Use a smaller batch.");
  if (o.type == PlannedType::fp16 && o.system == System::rankwise)
    refuse("--precision=fp16 is not known of the lessons.", "Use bf16 or f32.");
  if (o.type == PlannedType::f32 && o.system != System::rankwise)
    refuse("--precision=f32 is planned for the lessons only.", "Use bf16 or fp16, or --system=rankwise.");
  if (o.tokens > 1e18) refuse(fmt::format("--tokens={} is above 10^18.", o.tokens), "Use --tokens=300e9.");
  if (o.rows < 1 || o.rows > 10) refuse(fmt::format("--rows={} is not from 1 to 10.", o.rows), "Use --rows=10.");
  if (!(o.tokens > 0)) refuse(fmt::format("--tokens={} is not above 0.", o.tokens), "Use --tokens=300e9.");
  if (o.days < 0) refuse(fmt::format("--days={} is below 0.", o.days), "Use --days=30, or 0 for any.");
  const bool measures = !o.calibrate.empty() || !o.check.empty();
  std::vector<Effect> effects{
      {"days", o.question == Question::fewest_gpus, "on another question", "Add --question=fewest-gpus."},
      {"gpus", o.question != Question::fewest_gpus, "with --question=fewest-gpus", "It is what is asked for."},
      {"layers", o.question != Question::largest_model, "with --question=largest-model",
       "It is what is asked for."},
      {"rows", !o.calibrate.empty(), "without --calibrate", "Add --calibrate=FILE."}};
  for (const char* option : {"only", "skip", "measured-with"})
    effects.push_back({option, measures, "without measured steps", "Add --calibrate=FILE or --check=FILE."});
  table.check_effects(effects);
  table.check_effects(effects_of(o.model.experts));
}

}  // namespace rankwise
