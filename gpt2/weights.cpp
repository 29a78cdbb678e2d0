#include "gpt2/weights.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/text.hpp"
#include "common/memory/device.hpp"
#include "gpt2/parameter_table.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t block_elements = 1 << 22;
constexpr std::int64_t published_head_channels = 64;
constexpr const char* token_embedding = "wte.weight";
constexpr const char* head = "lm_head.weight";

[[noreturn]] void refuse(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("{} {}.", path, why),
                  "Use a GPT-2 of Hugging Face's transformers library: model.safetensors with tensors called\n"
                  "wte.weight, wpe.weight, h.0.ln_1.weight and so on.");
}

/// Calls @p work(first, count) for runs of at most block_elements of a tensor's @p elements elements.
void for_each_run(std::int64_t elements, const std::function<void(std::int64_t, std::int64_t)>& work)
{
  for (std::int64_t first = 0; first < elements; first += block_elements)
    work(first, std::min(block_elements, elements - first));
}

/// Counts weights that are not finite, and remembers the first.
class NotFinite {
 public:
  /// Checks elements of the tensor @p name, beginning with element @p first.
  void look(const std::string& name, std::int64_t first, std::span<const float> elements)
  {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (std::isfinite(elements[i])) continue;
      if (count_++ == 0)
        example_ = fmt::format("{} is element {} of {}", elements[i],
                               group_digits(first + static_cast<std::int64_t>(i)), name);
    }
  }
  /// Throws UserError, beginning with @p file and ending with @p remedy, if any weight is not finite.
  void refuse_any(const std::string& file, const std::string& remedy) const
  {
    if (count_ == 0) return;
    throw UserError(fmt::format("{} has {} {} not finite: {}{}.", file, group_digits(count_),
                                count_ == 1 ? "weight that is" : "weights that are",
                                count_ == 1 ? "" : "the first, ", example_),
                    "With such weights every loss is NaN. " + remedy);
  }

 private:
  std::int64_t count_ = 0;
  std::string example_;  // description of the first one
};

std::vector<std::int64_t> extents(const Shape& shape)
{
  std::vector<std::int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape[i]);
  return extents;
}

/// Elements of the flat vector as a shard without moments. The
/// whole table stores a tensor's padding after its elements.
Shard weights_shard(const ParameterTable& table, const Parameter& p, std::int64_t first, std::span<float> elements)
{
  const auto count = static_cast<std::int64_t>(elements.size());
  return {table, {p.elements.first + first, count}, Tensor(elements, {count}), {}, {}};
}

}  // namespace

PublishedModel::PublishedModel(const std::string& path, std::int64_t heads) : path_(path), files_(path)
{
  constexpr const char* library_prefix = "transformer.";
  if (files_.find(token_embedding) == nullptr) prefix_ = library_prefix;
  read_sizes(heads);
  check_tensors();
  check_head();
}

void PublishedModel::read_sizes(std::int64_t heads)
{
  const auto matrix = [&](const char* name) -> const std::vector<std::int64_t>& {
    const SafetensorsEntry* const tensor = find(name);
    if (tensor == nullptr) refuse(path_, fmt::format("has no tensor {}", name));
    if (tensor->shape.size() != 2)
      refuse(path_, fmt::format("has a tensor {} of the shape ({}), which is not a matrix", name,
                                fmt::join(tensor->shape, ", ")));
    return tensor->shape;
  };
  config_.name = path_;
  config_.vocabulary = matrix(token_embedding)[0];
  config_.channels = matrix(token_embedding)[1];
  config_.context = matrix("wpe.weight")[0];
  while (find(fmt::format("h.{}.ln_1.weight", config_.layers)) != nullptr) ++config_.layers;
  if (config_.layers == 0) refuse(path_, "has no tensor h.0.ln_1.weight");
  const std::optional<ModelConfig>& described = files_.sizes();
  if (heads == 0 && !described && config_.channels % published_head_channels != 0)
    throw UserError(
        fmt::format("{} does not give the number of heads of its {} channels.", path_, config_.channels),
        "Without --heads=H, heads of 64 channels are assumed. Give the number of heads: --heads=H.");
  config_.heads = heads > 0 ? heads : described ? described->heads : config_.channels / published_head_channels;
  check_config(config_);
  if (described) check_described(*described);
}

void PublishedModel::check_described(const ModelConfig& described) const
{
  const auto sizes = [](const ModelConfig& c) {
    return fmt::format("L={} H={} C={} V={}, context {}", c.layers, c.heads, c.channels, c.vocabulary, c.context);
  };
  if (sizes(described) != sizes(config_))
    throw UserError(fmt::format("{} contradicts its tensors or --heads: {} there, {} here.", described.name,
                                sizes(described), sizes(config_)),
                    "Leave --heads out, or use the config.json that was saved with these tensors.");
}

void PublishedModel::check_tensors() const
{
  const ParameterTable table(config_);
  std::vector<std::string> wrong;
  for (const Parameter& p : table.entries()) {
    const SafetensorsEntry* const tensor = find(p.name);
    if (tensor == nullptr)
      wrong.push_back(fmt::format("{} is missing", p.name));
    else if (tensor->shape != extents(p.shape))
      wrong.push_back(
          fmt::format("{} has the shape ({}), not {}", p.name, fmt::join(tensor->shape, ", "), p.shape.text()));
    else if (tensor->dtype != "F32" && tensor->dtype != "F16" && tensor->dtype != "BF16")
      wrong.push_back(fmt::format("{} is {}, not F32, F16 or BF16", p.name, tensor->dtype));
  }
  std::set<std::string> names;
  for (const Parameter& p : table.entries()) names.insert(prefix_ + p.name);
  for (const SafetensorsEntry* const entry : files_.tensors()) {
    const SafetensorsEntry& tensor = *entry;
    const bool derived =
        tensor.name == head || tensor.name.ends_with(".attn.bias") || tensor.name.ends_with(".attn.masked_bias");
    if (!derived && !names.contains(tensor.name))
      wrong.push_back(fmt::format("{} is not a tensor of a GPT-2 with {} layers", tensor.name, config_.layers));
  }
  constexpr std::size_t shown = 5;
  if (wrong.size() > shown) {
    const std::size_t more = wrong.size() - shown;
    wrong.resize(shown);
    wrong.push_back(fmt::format("and {} more", more));
  }
  if (!wrong.empty()) refuse(path_, fmt::format("is not a whole GPT-2: {}", fmt::join(wrong, "; ")));
}

void PublishedModel::check_head()
{
  const SafetensorsEntry* const apart = files_.find(head);
  if (apart == nullptr) return;
  const SafetensorsEntry* const tied = find(token_embedding);
  if (apart->shape != tied->shape || apart->dtype != tied->dtype)
    refuse(path_,
           fmt::format("has a {} of another shape or type than {}, to which GPT-2's is tied", head, tied->name));
  std::vector<float> a, b;
  for_each_run(tied->elements, [&](std::int64_t first, std::int64_t count) {
    a.resize(static_cast<std::size_t>(count));
    b.resize(a.size());
    files_.read(*apart, first, a);
    files_.read(*tied, first, b);
    const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    if (!std::equal(a.begin(), a.end(), b.begin(), same))
      refuse(path_, fmt::format("has a {} that differs from {}, to which GPT-2's is tied", head, tied->name));
  });
}

void PublishedModel::check_finite()
{
  const ParameterTable table(config_);
  NotFinite wrong;
  std::vector<float> elements;
  for (const Parameter& p : table.entries()) {
    const SafetensorsEntry& tensor = *find(p.name);
    for_each_run(tensor.elements, [&](std::int64_t first, std::int64_t count) {
      elements.resize(static_cast<std::size_t>(count));
      files_.read(tensor, first, elements);
      wrong.look(tensor.name, first, elements);
    });
  }
  wrong.refuse_any(path_, "Make or download the file again, or import it as it is: --allow-not-finite.");
}

void PublishedModel::save(const std::string& path)
{
  const ParameterTable table(config_);
  const std::unique_ptr<Stream> stream = make_cpu_device()->make_stream();
  std::vector<float> elements;
  create_checkpoint(path, {.config = config_, .moments = false});
  // Long runs of the flat vector, with many small tensors in each, because every opening of the file reads all of
  // its tensors' headers.
  auto next = table.entries().begin();
  for_each_run(table.elements(), [&](std::int64_t first, std::int64_t count) {
    const Range run{first, count};
    elements.assign(static_cast<std::size_t>(count), 0);  // padding stays zero
    for (; next != table.entries().end() && next->elements.first < run.end(); ++next) {
      read_part(*next, run, elements);
      if (next->elements.end() > run.end()) break;
    }
    write_checkpoint(path, *stream, {table, run, Tensor(std::span(elements), {count}), {}, {}});
  });
  commit_checkpoint(path);
}

void PublishedModel::read_part(const Parameter& p, Range run, std::span<float> to)
{
  const SafetensorsEntry& tensor = *find(p.name);
  const Range both = intersect(run, {p.elements.first, tensor.elements});  // padding follows the elements
  if (both.empty()) return;
  files_.read(tensor, both.first - p.elements.first,
              to.subspan(static_cast<std::size_t>(both.first - run.first), static_cast<std::size_t>(both.count)));
}

void publish(const std::string& checkpoint, const ModelConfig& config, const std::string& path)
{
  const ParameterTable table(config);
  std::vector<const Parameter*> in_order;
  for (const Parameter& p : table.entries()) in_order.push_back(&p);
  std::sort(in_order.begin(), in_order.end(),
            [](const Parameter* a, const Parameter* b) { return a->name < b->name; });
  std::vector<SafetensorsDeclaration> declarations;
  for (const Parameter* const p : in_order) declarations.push_back({p->name, extents(p->shape)});

  const std::unique_ptr<Stream> stream = make_cpu_device()->make_stream();
  SafetensorsWriter writer(path, declarations, {{"format", "pt"}});
  std::vector<float> elements;
  for (const Parameter* const p : in_order)
    for_each_run(p->shape.elements(), [&](std::int64_t first, std::int64_t count) {
      elements.resize(static_cast<std::size_t>(count));
      read_checkpoint(checkpoint, *stream, weights_shard(table, *p, first, elements));
      writer.write(elements);
    });
  writer.close();
}

void publish_folder(const std::string& checkpoint, const ModelConfig& config, const std::string& folder)
{
  std::filesystem::create_directory(folder);
  write_model_config(folder, config);
  publish(checkpoint, config, std::filesystem::path(folder) / "model.safetensors");
}

void check_finite_weights(const std::string& checkpoint, const ModelConfig& config, const std::string& asked)
{
  const ParameterTable table(config);
  const std::unique_ptr<Stream> stream = make_cpu_device()->make_stream();
  NotFinite wrong;
  std::vector<float> elements;
  auto next = table.entries().begin();
  for_each_run(table.elements(), [&](std::int64_t first, std::int64_t count) {
    const Range run{first, count};
    elements.resize(static_cast<std::size_t>(count));
    read_checkpoint(checkpoint, *stream, {table, run, Tensor(std::span(elements), {count}), {}, {}});
    for (; next != table.entries().end() && next->elements.first < run.end(); ++next) {
      const Range both = intersect(run, next->elements);
      wrong.look(next->name, both.first - next->elements.first,
                 std::span(elements).subspan(static_cast<std::size_t>(both.first - first),
                                             static_cast<std::size_t>(both.count)));
      if (next->elements.end() > run.end()) break;
    }
  });
  wrong.refuse_any(asked, "Start from other weights.");
}

}  // namespace rankwise
