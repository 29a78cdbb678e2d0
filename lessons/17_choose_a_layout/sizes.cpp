#include "lessons/17_choose_a_layout/sizes.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "lessons/parallel/experts/experts_options.hpp"

namespace rankwise {

std::vector<ModelConfig> planned_presets()
{
  std::vector<ModelConfig> all;
  for (const std::string& name : preset_names()) all.push_back(preset(name));
  all.push_back({"22b", 48, 64, 6144, 2048, 51200});
  all.push_back({"175b", 96, 96, 12288, 2048, 51200});
  all.push_back({"530b", 105, 128, 20480, 2048, 51200});
  all.push_back({"1t", 128, 160, 25600, 2048, 51200});
  return all;
}

ModelConfig PlannedModel::config() const
{
  const std::vector<ModelConfig> all = planned_presets();
  const auto found = std::find_if(all.begin(), all.end(), [&](const ModelConfig& m) { return m.name == preset; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (const ModelConfig& one : all) names.push_back(one.name);
    throw UserError(fmt::format("--model={} is not a model.", preset),
                    fmt::format("Use {}, or --layers, --heads and --channels.", fmt::join(names, ", ")));
  }
  ModelConfig model = *found;
  if (layers != 0) model.layers = layers;
  if (heads != 0) model.heads = heads;
  if (channels != 0) model.channels = channels;
  if (vocabulary != 0) model.vocabulary = vocabulary;
  if (context != 0) model.context = context;
  model.experts = experts;
  check_config(model);
  return model;
}

void declare(OptionTable& table, PlannedModel& model)
{
  table.add("Model", "model", model.preset,
            "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, 22b, 175b, 530b or 1t");
  table.add("Model", "layers", model.layers, "number of blocks; 0: the preset's");
  table.add("Model", "heads", model.heads, "attention heads; 0: the preset's");
  table.add("Model", "channels", model.channels, "channels; 0: the preset's");
  table.add("Model", "vocabulary", model.vocabulary, "entries of the vocabulary, with padding; 0: the preset's");
  declare(table, model.experts);
  table.add("Model", "context", model.context, "tokens of a sequence; 0: the preset's");
}

std::int64_t parameters_of_stage(const ModelConfig& model, std::int64_t tp, std::int64_t pp, std::int64_t stage,
                                 std::int64_t ep)
{
  const std::int64_t C = model.channels, vocabulary = (model.vocabulary + tp - 1) / tp * C;
  const std::int64_t E = model.experts.count, of_experts = (E / ep - 1) * model.expert_parameters() / tp + C * E;
  std::int64_t count = model.layers / pp * ((12 * C * C + 7 * C) / tp + 6 * C);
  if (E > 1) count += model.expert_blocks() / pp * of_experts;
  if (stage == 0) count += vocabulary + model.context * C;
  if (stage == pp - 1) count += (pp > 1 ? vocabulary : 0) + 2 * C;
  return count;
}

double narayanan_flops(const ModelConfig& model, std::int64_t sequences)
{
  const auto L = static_cast<double>(model.layers), C = static_cast<double>(model.channels);
  const auto T = static_cast<double>(model.context), V = static_cast<double>(model.vocabulary);
  return 96.0 * static_cast<double>(sequences) * T * L * C * C * (1 + T / (6 * C) + V / (16 * L * C));
}

}  // namespace rankwise
