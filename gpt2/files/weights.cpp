#include "gpt2/files/weights.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <list>
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

constexpr std::int64_t elements_at_once = 1 << 22;
constexpr std::int64_t published_head_channels = 64;

/// The architecture of a file by itself, or of a folder.
Architecture architecture_of(const PublishedFiles& files)
{
  if (files.sizes()) return files.sizes()->architecture;
  const bool bert = std::ranges::any_of(files.tensors(), [](const SafetensorsEntry* tensor) {
    return tensor->name.ends_with("embeddings.word_embeddings.weight");
  });
  return bert ? Architecture::bert : Architecture::gpt2;
}

/// Calls @p work(first, count) for runs of at most elements_at_once of a tensor's @p elements elements.
void for_each_run(std::int64_t elements, const std::function<void(std::int64_t, std::int64_t)>& work)
{
  for (std::int64_t first = 0; first < elements; first += elements_at_once)
    work(first, std::min(elements_at_once, elements - first));
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
  config_.architecture = architecture_of(files_);
  if (files_.find(names().token_embedding) == nullptr) prefix_ = names().prefix;
  read_sizes(heads);
  check_tensors();
  for (const auto& [copy, original] : names().tied) check_tied(copy, original);
}

void PublishedModel::refuse(const std::string& why) const
{
  throw UserError(fmt::format("{} {}.", path_, why), "Use a " + names().example);
}

const SafetensorsEntry* PublishedModel::find(const std::string& name) const
{
  const SafetensorsEntry* const tensor = files_.find(prefix_ + name);
  return tensor != nullptr ? tensor : files_.find(prefix_ + converted_name(name));
}

void PublishedModel::read_sizes(std::int64_t heads)
{
  const auto matrix = [&](const std::string& name) -> const std::vector<std::int64_t>& {
    const SafetensorsEntry* const tensor = find(name);
    if (tensor == nullptr) refuse(fmt::format("has no tensor {}", name));
    if (tensor->shape.size() != 2)
      refuse(fmt::format("has a tensor {} of the shape ({}), which is not a matrix", name,
                         fmt::join(tensor->shape, ", ")));
    return tensor->shape;
  };
  config_.name = path_;
  config_.vocabulary = matrix(names().token_embedding)[0];
  config_.channels = matrix(names().token_embedding)[1];
  config_.context = matrix(names().position_embedding)[0];
  const auto of_layer = [&](std::int64_t layer) { return fmt::format(fmt::runtime(names().of_layer), layer); };
  while (find(of_layer(config_.layers)) != nullptr) ++config_.layers;
  if (config_.layers == 0) refuse("has no tensor " + of_layer(0));
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
  std::set<const SafetensorsEntry*> used;
  for_each_tensor(table, [&](const PublishedTensor& expected, const SafetensorsEntry* tensor) {
    used.insert(tensor);
    if (tensor == nullptr)
      wrong.push_back(fmt::format("{} is missing", expected.name));
    else if (tensor->shape != expected.shape())
      wrong.push_back(fmt::format("{} has the shape ({}), not ({})", expected.name, fmt::join(tensor->shape, ", "),
                                  fmt::join(expected.shape(), ", ")));
    else if (tensor->dtype != "F32" && tensor->dtype != "F16" && tensor->dtype != "BF16")
      wrong.push_back(fmt::format("{} is {}, not F32, F16 or BF16", expected.name, tensor->dtype));
  });
  for (const SafetensorsEntry* const tensor : files_.tensors()) {
    const auto ends = [&](const std::string& ending) { return tensor->name.ends_with(ending); };
    const auto is_copy = [&](const auto& tied) { return tensor->name == tied.first; };
    if (!used.contains(tensor) && std::ranges::none_of(names().redundant, ends) &&
        std::ranges::none_of(names().tied, is_copy))
      wrong.push_back(
          fmt::format("{} is not a tensor of a {} with {} layers", tensor->name, names().called, config_.layers));
  }
  constexpr std::size_t shown = 5;
  if (wrong.size() > shown) {
    const std::size_t more = wrong.size() - shown;
    wrong.resize(shown);
    wrong.push_back(fmt::format("and {} more", more));
  }
  if (!wrong.empty()) refuse(fmt::format("is not a whole {}: {}", names().called, fmt::join(wrong, "; ")));
}

void PublishedModel::check_tied(const std::string& copy, const std::string& original)
{
  const SafetensorsEntry* const apart = files_.find(copy);
  if (apart == nullptr) return;
  const SafetensorsEntry* const tied = find(original);
  const auto refuse_it = [&](const char* how) {
    refuse(fmt::format("has a {} {} {}, to which {}'s is tied", copy, how, tied->name, names().called));
  };
  if (apart->shape != tied->shape || apart->dtype != tied->dtype) refuse_it("of another shape or type than");
  std::vector<float> a, b;
  for_each_run(tied->elements, [&](std::int64_t first, std::int64_t count) {
    a.resize(static_cast<std::size_t>(count));
    b.resize(a.size());
    files_.read(*apart, first, a);
    files_.read(*tied, first, b);
    const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    if (!std::equal(a.begin(), a.end(), b.begin(), same)) refuse_it("that differs from");
  });
}

void PublishedModel::for_each_tensor(
    const ParameterTable& table,
    const std::function<void(const PublishedTensor&, const SafetensorsEntry*)>& work) const
{
  for (const Parameter& p : table.entries())
    for (const PublishedTensor& tensor : published_tensors(config_.architecture, p))
      work(tensor, find(tensor.name));
}

void PublishedModel::check_finite()
{
  NotFinite wrong;
  std::vector<float> elements;
  for_each_tensor(ParameterTable(config_), [&](const PublishedTensor&, const SafetensorsEntry* tensor) {
    for_each_run(tensor->elements, [&](std::int64_t first, std::int64_t count) {
      elements.resize(static_cast<std::size_t>(count));
      files_.read(*tensor, first, elements);
      wrong.look(tensor->name, first, elements);
    });
  });
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
  const Range both = intersect(run, {p.elements.first, p.shape.elements()});  // padding follows the elements
  if (both.empty()) return;
  const auto part = [](const auto& all, std::int64_t first, std::int64_t count) {
    return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  };
  const std::span<float> wanted = part(to, both.first - run.first, both.count);
  const std::int64_t first = both.first - p.elements.first;
  const std::vector<PublishedTensor> tensors = published_tensors(config_.architecture, p);
  if (tensors.front().same_layout()) return files_.read(*find(tensors.front().name), first, wanted);

  if (converted_number_ != p.number) {
    converted_number_ = p.number;
    converted_.resize(static_cast<std::size_t>(p.shape.elements()));
    for (const PublishedTensor& tensor : tensors) {
      std::vector<float> elements(static_cast<std::size_t>(tensor.elements()));
      files_.read(*find(tensor.name), 0, elements);
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        converted_[static_cast<std::size_t>(tensor.place(i))] = elements[static_cast<std::size_t>(i)];
    }
  }
  std::ranges::copy(part(converted_, first, both.count), wanted.begin());
}

void publish(const std::string& checkpoint, const ModelConfig& config, const std::string& path,
             const std::function<void()>& before_rename)
{
  const ParameterTable table(config);
  std::vector<std::pair<PublishedTensor, const Parameter*>> in_order;
  for (const Parameter& p : table.entries())
    for (const PublishedTensor& tensor : published_tensors(config.architecture, p))
      in_order.emplace_back(tensor, &p);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  std::vector<SafetensorsDeclaration> declarations;
  for (const auto& [tensor, p] : in_order) declarations.push_back({tensor.name, tensor.shape()});

  const std::unique_ptr<Stream> stream = make_cpu_device()->make_stream();
  SafetensorsWriter writer(path, declarations, {{"format", "pt"}});
  std::vector<float> elements;
  for (const auto& entry : in_order) {
    const PublishedTensor& tensor = entry.first;
    const Parameter& p = *entry.second;
    const auto read = [&](std::int64_t first, std::int64_t count) {
      elements.resize(static_cast<std::size_t>(count));
      read_checkpoint(checkpoint, *stream, weights_shard(table, p, first, elements));
    };
    if (tensor.same_layout()) {
      for_each_run(tensor.elements(), [&](std::int64_t first, std::int64_t count) {
        read(first, count);
        writer.write(elements);
      });
      continue;
    }
    read(0, p.shape.elements());
    std::vector<float> converted(static_cast<std::size_t>(tensor.elements()));
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      converted[static_cast<std::size_t>(i)] = elements[static_cast<std::size_t>(tensor.place(i))];
    writer.write(converted);
  }
  writer.keep();
  or_remove_temporary(path, before_rename);
  writer.close();
}

void publish_folder(const std::string& checkpoint, const ModelConfig& config, const std::filesystem::path& folder)
{
  std::list<OutputFile> descriptions;
  for (const auto& [name, text] : model_descriptions(config))
    descriptions.emplace_front(folder / name).write(std::as_bytes(std::span(text)));
  // A folder without config.json is refused, so it goes first and comes back last: no weights are read with the sizes of others.
  publish(checkpoint, config, folder / "model.safetensors", [&] {
    for (const char* const name : {"config.json", "generation_config.json"})
      std::filesystem::remove(resolve_links(folder / name));
  });
  for (OutputFile& description : descriptions) description.commit();
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
