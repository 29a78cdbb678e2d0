#include "gpt2/files/published_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"
#include "data/pair_loader.hpp"
#include "gpt2/bert/model.hpp"

namespace rankwise {

namespace {

using Json = nlohmann::json;

constexpr const char* all_in_one = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

/// The names of a model's sizes in its config.json.
using SizeNames = std::array<std::pair<const char*, std::int64_t ModelConfig::*>, 5>;
constexpr SizeNames gpt2_size_names{{{"n_layer", &ModelConfig::layers},
                                     {"n_head", &ModelConfig::heads},
                                     {"n_embd", &ModelConfig::channels},
                                     {"n_positions", &ModelConfig::context},
                                     {"vocab_size", &ModelConfig::vocabulary}}};
constexpr SizeNames bert_size_names{{{"num_hidden_layers", &ModelConfig::layers},
                                     {"num_attention_heads", &ModelConfig::heads},
                                     {"hidden_size", &ModelConfig::channels},
                                     {"max_position_embeddings", &ModelConfig::context},
                                     {"vocab_size", &ModelConfig::vocabulary}}};

constexpr const char* published_remedy =
    "Use a GPT-2 or a BERT as transformers saves it with save_pretrained(): a folder with config.json\n"
    "and model.safetensors, or with model.safetensors.index.json and the files that it names.";

[[noreturn]] void refuse_published(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("{} {}.", path, why), published_remedy);
}

/// The object in a JSON file.
Json read_object(const std::string& path)
{
  constexpr std::int64_t longest = 100'000'000;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    refuse_published(path, "does not exist" + looked_for(path) + ", or is not a file");
  const std::string text = whole_text(path, {.asked = path, .remedy = published_remedy}, longest);
  Json json;
  try {
    json = parse_json(text);
  } catch (const std::exception&) {
    refuse_published(path, "is not JSON, or is nested too deep");
  }
  if (!json.is_object()) refuse_published(path, "is not a JSON object");
  return json;
}

/// Refuses weights in files that are not safetensors, by name.
void refuse_other_formats(const std::string& path, const std::string& shown)
{
  constexpr std::array<std::string_view, 6> pickles{".bin", ".pt", ".pth", ".ckpt", ".pkl", ".bin.index.json"};
  if (std::ranges::none_of(pickles, [&](std::string_view ending) { return path.ends_with(ending); })) return;
  throw UserError(
      fmt::format("{} is a pickle, which can run any program when it is read.", shown),
      "Let transformers convert it once, where its source is trusted: python3 -c 'from transformers import\n"
      "AutoModelForPreTraining as M; M.from_pretrained(\"FOLDER\").save_pretrained(\"NEW_FOLDER\")'.");
}

/// Refuses a field of config.json unless it is missing or has one of the values with which a model is computed here.
void expect(const std::string& path, const Json& config, const char* name, const std::vector<Json>& possible)
{
  const auto found = config.find(name);
  if (found == config.end() || std::ranges::find(possible, *found) != possible.end()) return;
  refuse_published(path, fmt::format("has {} = {}; only {} can be computed here", name, json_text(*found),
                                     json_text(possible[0])));
}

void check_gpt2(const std::string& path, const Json& config, const ModelConfig& sizes)
{
  expect(path, config, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  expect(path, config, "layer_norm_epsilon", {norm_epsilon});
  expect(path, config, "n_inner", {4 * sizes.channels, nullptr});
  expect(path, config, "scale_attn_weights", {true});
  expect(path, config, "scale_attn_by_inverse_layer_idx", {false});
}

void check_bert(const std::string& path, const Json& config, const ModelConfig& sizes)
{
  if (config.value("hidden_act", Json("gelu")) == "gelu")
    throw UserError(
        fmt::format(
            "{} has hidden_act = \"gelu\", or none, which means GELU by the error function. Here GELU is the "
            "tanh approximation,\nas in the published code of Devlin et al.; an activation differs by less "
            "than 5e-4.",
            path),
        "Set hidden_act to \"gelu_new\" in config.json to accept the approximation.");
  expect(path, config, "hidden_act", {"gelu_new", "gelu_pytorch_tanh"});
  expect(path, config, "layer_norm_eps", {bert_norm_epsilon});
  expect(path, config, "intermediate_size", {4 * sizes.channels});
  expect(path, config, "type_vocab_size", {2});
  expect(path, config, "position_embedding_type", {"absolute"});
  expect(path, config, "is_decoder", {false});
}

}  // namespace

ModelConfig read_model_config(const std::string& path)
{
  const Json config = read_object(path);
  const Json type = config.value("model_type", Json("missing"));
  if (type != "gpt2" && type != "bert")
    refuse_published(path, fmt::format("has model_type = {}, not \"gpt2\" or \"bert\"", json_text(type)));
  ModelConfig sizes;
  const bool bert = type == "bert";
  if (bert) sizes.architecture = Architecture::bert;
  for (const auto& [name, size] : bert ? bert_size_names : gpt2_size_names) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number_integer())
      refuse_published(path, fmt::format("has no number {}", name));
    sizes.*size = found->get<std::int64_t>();
  }
  sizes.name = path;
  check_config(sizes);
  bert ? check_bert(path, config, sizes) : check_gpt2(path, config, sizes);
  expect(path, config, "add_cross_attention", {false});
  expect(path, config, "tie_word_embeddings", {true});
  return sizes;
}

PublishedFiles::PublishedFiles(const std::string& path)
{
  refuse_other_formats(path, path);
  std::error_code unseen;  // open() says what is wrong with the path
  if (std::filesystem::is_directory(path, unseen))
    open_folder(path);
  else
    open(path);
}

void PublishedFiles::open_folder(const std::filesystem::path& folder)
{
  const auto has = [&](const char* name) {
    std::error_code unseen;
    return std::filesystem::exists(folder / name, unseen);
  };
  for (const char* const pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (has(pickle) && !has(all_in_one) && !has(index_name))
      refuse_other_formats(pickle, (folder / pickle).string());
  sizes_ = read_model_config(folder / "config.json");
  if (has(all_in_one))
    open(folder / all_in_one);
  else if (has(index_name))
    open_shards(folder);
  else
    refuse_published(folder, "has no model.safetensors");
}

void PublishedFiles::open(const std::string& path)
{
  SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(path));
  for (const SafetensorsEntry& tensor : file.tensors()) {
    if (!by_name_.emplace(tensor.name, std::pair(&file, &tensor)).second)
      refuse_published(path, fmt::format("has the tensor {}, which another file has too", tensor.name));
    tensors_.push_back(&tensor);
  }
}

void PublishedFiles::open_shards(const std::filesystem::path& folder)
{
  const std::string path = folder / index_name;
  const Json index = read_object(path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) refuse_published(path, "has no object weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) refuse_published(path, fmt::format("gives no file for the tensor {}", tensor));
    const auto name = file.get<std::string>();
    if (name.find('/') != std::string::npos || !name.ends_with(".safetensors"))
      refuse_published(path, fmt::format("names \"{}\", which is not a safetensors file of its folder", name));
    names.insert(name);
  }
  for (const std::string& name : names) {
    const std::size_t before = tensors_.size();
    open(folder / name);
    for (const SafetensorsEntry* const tensor : std::span(tensors_).subspan(before))
      if (map->value(tensor->name, "") != name)
        refuse_published(path, fmt::format("does not say that {} has the tensor {}", name, tensor->name));
  }
  for (const auto& [tensor, file] : map->items())
    if (find(tensor) == nullptr)
      refuse_published(
          path, fmt::format("says that {} has the tensor {}, and it has none", file.get<std::string>(), tensor));
}

const SafetensorsEntry* PublishedFiles::find(std::string_view name) const
{
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.second;
}

void PublishedFiles::read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> to)
{
  by_name_.at(tensor.name).first->read(tensor, first, to);
}

std::map<std::string, std::string> model_descriptions(const ModelConfig& config)
{
  constexpr std::int64_t published_vocabulary = 50257;
  const Json end_of_text =
      config.vocabulary == published_vocabulary ? Json(published_vocabulary - 1) : Json(nullptr);
  nlohmann::json json{{"activation_function", "gelu_new"},  {"architectures", {"GPT2LMHeadModel"}},
                      {"bos_token_id", end_of_text},        {"eos_token_id", end_of_text},
                      {"layer_norm_epsilon", norm_epsilon}, {"model_type", "gpt2"}};
  const bool bert = config.architecture == Architecture::bert;
  if (bert)
    json = {{"architectures", {"BertForPreTraining"}},
            {"hidden_act", "gelu_new"},
            {"intermediate_size", 4 * config.channels},
            {"layer_norm_eps", bert_norm_epsilon},
            {"model_type", "bert"},
            {"pad_token_id", pair_tokens(config.vocabulary - special_tokens).pad},
            {"type_vocab_size", 2}};
  for (const auto& [name, size] : bert ? bert_size_names : gpt2_size_names) json[name] = config.*size;
  json["tie_word_embeddings"] = true;
  json["torch_dtype"] = "float32";
  std::map<std::string, std::string> texts{{"config.json", json_text(json, 2) + "\n"}};
  if (bert) return texts;
  const nlohmann::json generation{
      {"_from_model_config", true}, {"bos_token_id", end_of_text}, {"eos_token_id", end_of_text}};
  texts["generation_config.json"] = json_text(generation, 2) + "\n";
  return texts;
}

bool names_folder(const std::string& path)
{
  std::error_code error;
  return std::filesystem::is_directory(path, error) || !std::filesystem::path(path).has_extension();
}

}  // namespace rankwise
