// Lesson 17: Choose a layout
//
// Builds on:    lesson 10 (a mesh of three axes), lesson 13 (ZeRO-3 on a mesh) and lesson 16 (five axes): their costs();
//               lesson 02 (what a message costs)
// New idea:     a run on a thousand GPUs can be planned on one core. Memory is a sum of terms; a step is the time of kernels
//               and messages whose sizes are known. What no data sheet says, such as the share of the peak that a product
//               reaches, becomes a dozen constants of a machine, which ten measured steps determine. Then every layout has a
//               forecast, and the fastest that fits can be found, with the reason why.
// Memory:       none to speak of: nothing is computed but the plan
// Traffic:      none
// Paper:        Narayanan et al. 2021 (Megatron-LM), section 3; Korthikanti et al. 2022; Rajbhandari et al. 2020 (ZeRO);
//               Bang et al. 2024 (vTrain)
//
// Sample runs:  build/lessons/17_choose_a_layout --machine=lessons/17_choose_a_layout/machines/a100-80gb-sxm.conf --model=175b --gpus=1024 --global-batch=1536 --system=megatron
//               build/lessons/17_choose_a_layout --machine=lessons/17_choose_a_layout/machines/a100-80gb-sxm.conf --model=gpt2-xl --gpus=8
//               build/lessons/17_choose_a_layout --machine=lessons/17_choose_a_layout/machines/h100-80gb-sxm.conf --model=175b --system=megatron --global-batch=1536 --question=fewest-gpus --days=30
// Expect:       memory of the largest rank by term, a step by part, days for 300 B tokens, and why other layouts are slower.

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/program/report.hpp"
#include "lessons/17_choose_a_layout/answers.hpp"
#include "lessons/17_choose_a_layout/calibration.hpp"
#include "lessons/17_choose_a_layout/options.hpp"

namespace rankwise {
namespace {

/// Fits the machine to measured steps and compares with others, as asked.
void calibrate_and_check(Report& report, const PlannerOptions& options, Machine& machine)
{
  RowOptions rows = options.measured;
  rows.system = options.system;
  rows.peak = machine.half;
  if (!options.calibrate.empty()) calibrate(report, machine, read_rows(options.calibrate, rows), options.rows);
  if (!options.check.empty())
    report_errors(report, "errors of the rows of --check", read_rows(options.check, rows), machine);
}

/// Prints what is planned.
void begin(Report& report, const OptionTable& table, const Job& job, const Machine& machine, std::int64_t gpus)
{
  const ModelConfig& m = job.model;
  report.comment(fmt::format("{}: {} layers, {} channels, {} heads, {} tokens, vocabulary {}; {:.4g} B parameters",
                             m.name, m.layers, m.channels, m.heads, m.context, m.vocabulary,
                             static_cast<double>(m.parameters()) / 1e9));
  report.comment(fmt::format("{} x {}, {} in a node; {} as {} runs it, global batch {}", gpus, machine.name,
                             machine.gpus_per_node, job.half ? "16 bits" : "32 bits", name_of(job.system),
                             job.global_batch));
  report.json()["model"] = {{"name", m.name}, {"parameters", m.parameters()}};
  report.json()["machine"] = machine.name;
  report.json()["machine_memory"] = machine.memory.value;
  report.json()["options"] = table.json();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  PlannerOptions options;
  OptionTable table("17_choose_a_layout", "Which layout fits, which is fastest, and what it costs");
  declare(table, options);
  Machine machine;
  return run_program(
      argc, argv, table,
      [&](const Session& session) {
        check_options(options, table, session);
        machine = read_machine(options.machine);
        const Job job = options.job(machine);
        check_step(job.model, job.global_batch, job.model.context);
      },
      [&](const Session&) {
        Report report(true, options.report);
        begin_job(report, "17_choose_a_layout", 1);
        calibrate_and_check(report, options, machine);
        const bool measured_only = !(options.calibrate.empty() && options.check.empty()) && !table.given("model");
        if (measured_only) return report.finish();
        begin(report, table, options.job(machine), machine, options.gpus);
        answer(report, options, machine);
        return report.finish();
      });
}
