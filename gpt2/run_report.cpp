#include "gpt2/run_report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "gpt2/parameter_table.hpp"

namespace rankwise {

void begin_report(Report& report, const Layout& layout, const OptionTable& table, const TrainingOptions& options,
                  const Tokens& tokens)
{
  const ModelConfig config = options.config();
  report.comment(fmt::format("model {}: {} parameters, L={} H={} C={} V={}, context {}", config.name,
                             group_digits(config.parameters()), config.layers, config.heads, config.channels,
                             config.vocabulary, config.context));
  std::int64_t frozen = 0;
  const ParameterTable parameters(config);
  for (const Parameter& p : parameters.entries()) frozen += p.frozen ? p.shape.elements() : 0;
  if (frozen > 0) report.comment(fmt::format("frozen: {} of these parameters", group_digits(frozen)));
  if (tokens.train) {
    const bool pairs = options.architecture == Architecture::bert;
    report.comment(fmt::format(
        "data {}: {} tokens to train on{}, {} for validation", tokens.name, group_digits(tokens.train->size()),
        pairs ? fmt::format(" in {} pairs", group_digits(options.sequences_of_epoch(tokens))) : "",
        group_digits(tokens.validation->size())));
  }
  if (const std::string given = table.table(); !given.empty()) report.comment(given);
  const std::int64_t B = layout.uneven ? options.cut_batch(layout.dp).micro_batch : options.micro_batch;
  if (options.micro_batch > B)
    report.comment(
        fmt::format("micro-batches of {}, not {}: {} ranks share {} sequences, and exact sums are cut where\n"
                    "aligned runs of sequences end",
                    B, options.micro_batch, layout.dp, options.global_batch));

  nlohmann::json& json = report.json();
  json["layout"] = {{"dp", layout.dp}, {"tp", layout.tp}, {"pp", layout.pp}};
  json["model"] = {{"name", config.name},
                   {"architecture", name_of(config.architecture)},
                   {"parameters", config.parameters()},
                   {"frozen", frozen}};
  json["options"] = table.json();
  json["traffic"] = nlohmann::json::object();
}

namespace {

/// Unit of a loss: BERT's is the sum of two means, of masked tokens and of pairs.
std::string loss_unit(Architecture architecture)
{
  return architecture == Architecture::bert ? "nats" : "nats/token";
}

}  // namespace

void begin_steps(Report& report, Architecture architecture)
{
  report.columns({{"step", "-", "{:.0f}"},
                  {"loss", loss_unit(architecture), "{:.6f}"},
                  {"grad norm", "-", "{:.4f}"},
                  {"learning rate", "-", "{:.3e}"},
                  {"time", "ms", "{:.1f}"}});
}

void report_step(Report& report, std::int64_t step, const StepReport& measured)
{
  report.row({static_cast<double>(step), measured.loss, measured.gradient_norm, measured.learning_rate,
              1e3 * measured.seconds});
}

void report_validation(Report& report, const Validation& measured, Architecture architecture)
{
  report.comment(
      fmt::format("validation after {} steps: {:.6f} {}", measured.step, measured.loss, loss_unit(architecture)));
}

void enter_record(Report& report, const RunRecord& record)
{
  nlohmann::json& json = report.json();
  json["first_step"] = record.first_step;
  json["loss"] = json["grad_norm"] = json["validation"] = nlohmann::json::array();
  for (const StepReport& step : record.steps) {
    json["loss"].push_back(step.loss);
    json["grad_norm"].push_back(step.gradient_norm);
  }
  for (const Validation& v : record.validation) json["validation"].push_back({{"step", v.step}, {"loss", v.loss}});
  json["digest"] = record.digest;
}

namespace {

/// Mean number of bytes of text that a token of the validation split stands for.
double bytes_a_token(const Tokens& tokens)
{
  constexpr std::int64_t most = 65'536;  // tokens decoded at once
  const std::int64_t all = tokens.validation->size();
  std::int64_t bytes = 0;
  for (std::int64_t first = 0; first < all; first += most) {
    std::vector<Token> some(static_cast<std::size_t>(std::min(most, all - first)));
    tokens.validation->read(first, some);
    bytes += std::ssize(tokens.tokenizer->decode(some));
  }
  return static_cast<double>(bytes) / static_cast<double>(all);
}

/// The last validation loss in the units of other reports.
std::string in_other_units(Report& report, double loss, const Tokens& tokens)
{
  const double perplexity = std::exp(loss), bits = loss / std::log(2.0) / bytes_a_token(tokens);
  report.json()["perplexity"] = perplexity;
  report.json()["bits_per_byte"] = bits;
  return fmt::format("nats/token: perplexity {:.4g}, {:.4f} bits a byte", perplexity, bits);
}

}  // namespace

void report_loss(Report& report, const RunRecord& record, const ModelConfig& config, const Tokens& tokens)
{
  const double first = record.steps.front().loss, last = record.steps.back().loss;
  const bool bert = config.architecture == Architecture::bert;
  const std::string unit = loss_unit(config.architecture);
  const std::string uniform = bert ? "ln V + ln 2" : "ln V";
  const double uniform_loss = std::log(static_cast<double>(config.vocabulary * (bert ? 2 : 1)));
  const auto nats = [](double loss) { return fmt::format("{:.6f}", loss); };
  std::vector<Line> lines{
      {"first step", nats(first), fmt::format("{} = {:.3f}, about", uniform, uniform_loss), unit},
      {"last step", nats(last), "", unit}};
  if (!record.validation.empty())
    lines.push_back({"validation", nats(record.validation.back().loss), "",
                     bert ? unit : in_other_units(report, record.validation.back().loss, tokens)});
  if (tokens.floor)
    lines.push_back({"floor of the data", nats(*tokens.floor), "", "nats/token, no model does better"});
  report.block("loss", lines);
  report.comment("digest " + record.digest);

  constexpr double near = 0.1;             // initial logits are small, not zero
  constexpr std::size_t enough = 10;       // steps after which a loss has to have fallen
  constexpr double sampling_error = 0.05;  // the validation split is a sample of the data's distribution
  if (record.from_scratch)
    report.check("first loss", fmt::format("{:.3f} = {} within 10 %", uniform_loss, uniform), first,
                 std::abs(first - uniform_loss) < near * uniform_loss);
  if (record.from_scratch && record.steps.size() >= enough)
    report.check("last loss", fmt::format("below {:.3f}", first), last, last < first);
  if (tokens.floor && !record.validation.empty()) {
    const double least = (1 - sampling_error) * *tokens.floor;
    report.check("validation loss", fmt::format("above {:.3f}, the floor less 5 %", least),
                 record.validation.back().loss, record.validation.back().loss > least);
  }
  enter_record(report, record);
}

namespace {

/// Bounds on the deviation of a run from the reference run.
struct DeviationBounds {
  double loss, parameters;
};

/// Exact sums in f32 give the reference's bits. Another order of sums changes the last of 24 bits; TF32 and bf16
/// keep 11 and 8 bits. Differences grow from step to step.
DeviationBounds deviation_bounds(const TrainingOptions& options)
{
  if (options.precision == DType::bf16) return {1e-2, 1e-2};
  if (options.tf32) return {2e-3, 2e-3};
  return options.arithmetic != Sums::fast ? DeviationBounds{0, 0} : DeviationBounds{1e-6, 1e-5};
}

}  // namespace

void report_deviation(Report& report, const RunRecord& record, const ReferenceRun& reference,
                      const ParameterDeviation& parameters, const TrainingOptions& options)
{
  const DeviationBounds bounds = deviation_bounds(options);
  const std::size_t steps = reference.losses.size();
  std::vector<double> losses;
  for (std::size_t i = 0; i < std::min(steps, record.steps.size()); ++i) losses.push_back(record.steps[i].loss);
  const double of_loss = loss_deviation(losses, reference.losses), of_parameters = parameters.relative();

  std::vector<Line> lines;
  const auto tell = [&](const std::string& what, double measured, double bound, const std::string& note) {
    const std::string expected = fmt::format("{} {:g}", bound == 0 ? "exactly" : "at most", bound);
    lines.push_back({what, fmt::format("{:.2g}", measured), "", fmt::format("{}, {}", expected, note)});
    report.check("deviation of " + what, expected, measured, measured <= bound);
  };
  tell("loss", of_loss, bounds.loss, fmt::format("relative, the largest of {} steps", steps));
  tell("parameters", of_parameters, bounds.parameters,
       fmt::format("of the norm of the whole vector, after {} steps", steps));
  report.block("deviation", lines);
  report.json()["deviation"] = {{"steps", steps}, {"loss", of_loss}, {"parameters", of_parameters}};
}

double mean_step_s(const RunRecord& record)
{
  const auto warm = record.steps.begin() + (record.steps.size() > 1 ? 1 : 0);
  double sum = 0;
  std::for_each(warm, record.steps.end(), [&](const StepReport& step) { sum += step.seconds; });
  return sum / static_cast<double>(record.steps.end() - warm);
}

void report_time(Report& report, const RunRecord& record, const TimeLedger& time, const TrainingOptions& options)
{
  const double step_s = mean_step_s(record);
  const ModelConfig config = options.config();
  const std::int64_t T = options.sequence != 0 ? options.sequence : config.context;
  const std::int64_t tokens = options.global_batch * T;
  const double tokens_per_s = static_cast<double>(tokens) / step_s;
  const double tflops = step_flops(config, tokens, T, false) / step_s * 1e-12;
  std::vector<Line> lines{{"step", fmt::format("{:.4g}", step_s), "", "s, mean without the first"},
                          {"speed", fmt::format("{:.4g}", tokens_per_s), "", "tokens/s"},
                          {"arithmetic", fmt::format("{:.4f}", tflops), "",
                           config.architecture == Architecture::bert ? "TFLOP/s by 3 forward passes of each unit"
                                                                     : "TFLOP/s by 6 P + 12 L C T a token"}};
  nlohmann::json& json = report.json()["time"];
  if (options.recompute_blocks && config.architecture == Architecture::gpt2) {
    const double all = recomputed_flops(config, tokens) / step_s * 1e-12;
    lines.push_back({"recomputed too", fmt::format("{:.4f}", all), "", "TFLOP/s by 8 P a token"});
    json["tflops_recomputed"] = all;
  }
  for (const Work work : {Work::compute, Work::exposed, Work::waiting, Work::io}) {
    const std::string name(name_of(work));
    json[name + "_s"] = time.seconds(work);
    lines.push_back({name, fmt::format("{:.4g}", time.seconds(work)), "", "s, whole run"});
  }
  json["step_s"] = step_s;
  json["tokens_per_s"] = tokens_per_s;
  json["tflops"] = tflops;
  report.block("time", lines);
}

void report_plan(Report& report, const CategoryBytes& planned, const TrainingOptions& options)
{
  const ModelConfig config = options.config();
  const BatchShape batch = options.batch(options.global_batch);
  const char* const rest = config.architecture == Architecture::bert ? "2 C^2 + 10 C + V + 2" : "2 C";
  std::vector<Line> lines{{"parameters", group_digits(config.parameters()),
                           fmt::format("V C + context C + L (12 C^2 + 13 C) + {}", rest), ""}};
  if (const std::int64_t n = config.expert_blocks(); n > 0) {
    lines.back().formula += fmt::format(" + {} ((E - 1) (8 C^2 + 5 C) + C E)", n);
    lines.push_back({"active parameters", group_digits(config.active_parameters()), "", "that one token meets"});
  }
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (planned[category] > 0)
      lines.push_back({std::string(name_of(category)), group_digits(planned[category]), "", "bytes"});
  }
  lines.push_back({"total", group_digits(planned.total()), "", "bytes"});
  const double flops =
      step_flops(config, batch.global_batch * batch.sequence, batch.sequence, options.recompute_blocks);
  lines.push_back({"arithmetic", fmt::format("{:.4g}", flops * 1e-12), "", "TFLOP a step"});
  report.block("plan", lines);
}

void end_not_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                    std::optional<std::int64_t> first)
{
  if (!first)
    throw Error(fmt::format("step {}: the loss is {} and the gradient norm {}, though every tensor is finite", step,
                            loss, gradient_norm));
  const bool gradient = *first >= table.elements();
  const std::int64_t element = *first - (gradient ? table.elements() : 0);
  const auto p = std::find_if(table.entries().begin(), table.entries().end(),
                              [&](const Parameter& entry) { return entry.elements.contains(element); });
  throw Error(
      fmt::format("step {}: the {} {} is not finite, first at element {} of {} (loss {}, gradient norm {}); "
                  "a smaller --learning-rate or --clip may help",
                  step, gradient ? "gradient of" : "parameter", p->name, element - p->elements.first,
                  p->stored.text(), loss, gradient_norm));
}

void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const ParameterTable& table, const Tensor& gradients, const Tensor& parameters)
{
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) return;
  std::optional<std::int64_t> first = kernels->first_not_finite(parameters);
  if (!first)
    if (const auto at = kernels->first_not_finite(gradients)) first = table.elements() + *at;
  end_not_finite(step, loss, gradient_norm, table, first);
}

}  // namespace rankwise
