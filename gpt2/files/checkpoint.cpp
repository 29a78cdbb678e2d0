#include "gpt2/files/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <set>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/files/hdf5.hpp"
#include "common/files/sealed_file.hpp"

namespace rankwise {

namespace {

constexpr FileKind checkpoint_kind{.name = checkpoint_seal, .version = 1, .called = "a checkpoint"};
constexpr std::array<const char*, 3> section_names{"parameters", "first_moments", "second_moments"};
constexpr std::int64_t block_elements = 1 << 18;

constexpr const char* architecture_name = "architecture";  // attribute of a model that is not a GPT-2

/// The file's description of its run; Error if it is impossible.
CheckpointInfo read_info(const Hdf5Object& file)
{
  constexpr std::int64_t largest = 1 << 24;  // bounds products of sizes and the loop over layers
  CheckpointInfo info;
  info.config.name = "of the file";
  for (const auto& [name, size] : model_sizes) {
    info.config.*size = read_integer_attribute(file, name);
    check(info.config.*size >= 1 && info.config.*size <= largest,
          fmt::format("its attribute {} is {}", name, info.config.*size));
  }
  for (const auto& [name, size] : expert_sizes)
    if (has_attribute(file, name)) info.config.experts.*size = read_integer_attribute(file, name);
  if (has_attribute(file, architecture_name)) {
    const std::string architecture = read_text_attribute(file, architecture_name);
    check(architecture == name_of(Architecture::bert), fmt::format("its model is a {}", architecture));
    info.config.architecture = Architecture::bert;
  }
  check_config(info.config);
  info.moments = has_attribute(file, "step");
  if (!info.moments) return info;
  info.step = read_integer_attribute(file, "step");
  info.updates = read_integer_attribute(file, "updates");
  check(info.step >= 1 && info.updates >= 1,
        fmt::format("its attributes give {} steps with {} updates", info.step, info.updates));
  const Hdf5Object options = open_group(file, "options");
  for (const std::string& name : attribute_names(options))
    info.options.push_back({name, read_text_attribute(options, name)});
  return info;
}

// ---- Blocks ----------------------------------------------------------------------------------------------------

/// A rectangle of a stored tensor with contiguous elements: whole rows, or a piece of one.
struct Block {
  Range rows;      ///< rows of the stored tensor
  Range columns;   ///< columns of the stored tensor
  Range elements;  ///< elements of the flat vector
};

/// The blocks of the elements @p owned of the stored tensor
/// @p p, in order, none larger than block_elements or a row.
std::vector<Block> blocks_of(const Parameter& p, Range owned)
{
  const Range shared = intersect(p.elements, owned);
  const std::int64_t width = p.stored[p.stored.rank() - 1];
  const std::int64_t most_rows = std::max<std::int64_t>(block_elements / width, 1);
  std::vector<Block> blocks;
  for (std::int64_t at = shared.first - p.elements.first, end = at + shared.count; at < end;) {
    const std::int64_t row = at / width, column = at % width;
    Block block{{row, 1}, {column, std::min(width - column, end - at)}, {}};
    if (block.columns.count == width) block.rows.count = std::min(most_rows, (end - at) / width);
    block.elements = {p.elements.first + at, block.rows.count * block.columns.count};
    at += block.elements.count;
    blocks.push_back(block);
  }
  return blocks;
}

/// The rectangles of the whole tensor that are in @p block,
/// with their positions in both; padding is in none of them.
std::vector<Hdf5Slab> slabs_in(const ParameterTable& table, const Parameter& p, const Block& block)
{
  std::vector<Hdf5Slab> slabs;
  for (const Slab& s : table.slabs(p)) {
    const Range rows = intersect(block.rows, {s.stored_row, s.rows.count});
    const Range columns = intersect(block.columns, {s.stored_column, s.columns.count});
    if (rows.empty() || columns.empty()) continue;
    slabs.push_back(
        {.count = {rows.count, columns.count},
         .at = {s.rows.first + rows.first - s.stored_row, s.columns.first + columns.first - s.stored_column},
         .block = {block.rows.count, block.columns.count},
         .at_in_block = {rows.first - block.rows.first, columns.first - block.columns.first}});
  }
  return slabs;
}

/// An open dataset of a section.
struct StoredTensor {
  std::size_t section;  ///< index in section_names
  std::size_t number;   ///< number of the tensor
  Shape shape;          ///< shape of the whole tensor
  Hdf5Object dataset;
};

/// Calls @p transfer(tensor, slabs, host, device) for each block of the shard in each section that it has; host is
/// a buffer of the block's size, device a view of the block in the shard.
void for_each_block(const Hdf5Object& file, const Shard& shard,
                    const std::function<void(const StoredTensor&, const std::vector<Hdf5Slab>&, const Tensor&,
                                             const Tensor&)>& transfer)
{
  std::vector<float> memory;
  const std::array<const Tensor*, 3> sections{&shard.parameters, &shard.first_moments, &shard.second_moments};
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i]->empty()) continue;
    check(sections[i]->elements() == shard.owned.count && sections[i]->type() == DType::f32,
          "a shard's tensor does not have the size of its range, or is not f32");
    Hdf5Object section = open_group(file, section_names[i]);
    for (const Parameter& p : shard.table.entries()) {
      const std::vector<Block> blocks = blocks_of(p, shard.owned);
      if (blocks.empty()) continue;
      StoredTensor tensor{i, static_cast<std::size_t>(p.number), p.shape, open_plain_dataset(section, p.name)};
      for (const Block& block : blocks) {
        memory.assign(static_cast<std::size_t>(block.elements.count), 0);
        transfer(tensor, slabs_in(shard.table, p, block), Tensor(std::span(memory), {block.elements.count}),
                 sections[i]->slice({block.elements.first - shard.owned.first, block.elements.count}));
      }
      tensor.dataset.close(fmt::format("close {}/{}", section_names[i], p.name));
    }
    section.close(fmt::format("close {}", section_names[i]));
  }
}

}  // namespace

// ---- Writing ---------------------------------------------------------------------------------------------------

namespace {

constexpr const char* digests_name = "digests";

/// The digests of the tensors in each section, indexed by tensor number.
using Digests = std::vector<std::vector<std::uint64_t>>;

Digests read_digests(const Hdf5Object& file)
{
  const Hdf5Object group = open_group(file, digests_name);
  Digests digests(std::min(members(group).size(), section_names.size()));
  for (std::size_t i = 0; i < digests.size(); ++i)
    digests[i] = read_u64(open_plain_dataset(group, section_names[i]));
  return digests;
}

void write_digests(const Hdf5Object& file, const Digests& digests)
{
  Hdf5Object group = open_group(file, digests_name);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    Hdf5Object dataset = open_plain_dataset(group, section_names[i]);
    write_u64(dataset, digests[i]);
    dataset.close("close the digests");
  }
  group.close("close the digests");
}

/// The contribution of a slab of @p block to the digest of a tensor of @p shape.
std::uint64_t digest_of(const Hdf5Slab& slab, std::span<const float> block, const Shape& shape)
{
  std::uint64_t digest = 0;
  const std::int64_t width = shape[shape.rank() - 1];
  for (std::int64_t row = 0; row < slab.count[0]; ++row) {
    const std::int64_t in_block = (slab.at_in_block[0] + row) * slab.block[1] + slab.at_in_block[1];
    const auto values = block.subspan(static_cast<std::size_t>(in_block), static_cast<std::size_t>(slab.count[1]));
    digest += placed_digest((slab.at[0] + row) * width + slab.at[1], values);
  }
  return digest;
}

/// The digest of a dataset of @p shape, read from the file.
std::uint64_t digest_of(const Hdf5Object& dataset, const Shape& shape)
{
  const std::int64_t rows = shape.rank() == 1 ? 1 : shape[0], width = shape[shape.rank() - 1];
  const std::int64_t most_rows = std::max<std::int64_t>(block_elements / width, 1);
  std::vector<float> block(static_cast<std::size_t>(std::min(rows, most_rows) * width));
  std::uint64_t digest = 0;
  for (std::int64_t row = 0; row < rows; row += most_rows) {
    const std::int64_t count = std::min(most_rows, rows - row);
    const Hdf5Slab slab{.count = {count, width}, .at = {row, 0}, .block = {count, width}, .at_in_block = {0, 0}};
    read_slab(dataset, slab, block.data());
    digest += digest_of(slab, block, shape);
  }
  return digest;
}

/// Throws Error unless each tensor of the file has the digest of the data that was to be written to it.
void check_written(const std::string& path)
{
  Hdf5Object file = open_hdf5(path);
  const Digests digests = read_digests(file);
  const ParameterTable table(read_info(file).config);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const Hdf5Object section = open_group(file, section_names[i]);
    for (const Parameter& p : table.entries()) {
      const Hdf5Object dataset = open_plain_dataset(section, p.name);
      check(shape_of(dataset) == p.shape &&
                digest_of(dataset, p.shape) == digests[i].at(static_cast<std::size_t>(p.number)),
            fmt::format("{}: {}/{} does not hold what was to be written to it", path, section_names[i], p.name));
    }
  }
  file.close("close " + path);
}

}  // namespace

void create_checkpoint(const std::string& path, const CheckpointInfo& info)
{
  create_temporary(path);
  or_remove_temporary(path, [&] {
    Hdf5Object file = create_hdf5(temporary_name(path), seal_bytes);
    for (const auto& [name, size] : model_sizes) write_attribute(file, name, info.config.*size);
    if (info.config.experts.count > 1)
      for (const auto& [name, size] : expert_sizes) write_attribute(file, name, info.config.experts.*size);
    if (info.config.architecture != Architecture::gpt2)
      write_attribute(file, architecture_name, std::string(name_of(info.config.architecture)));
    if (info.moments) {
      write_attribute(file, "step", info.step);
      write_attribute(file, "updates", info.updates);
      Hdf5Object options = create_group(file, "options");
      for (const RunOption& option : info.options) write_attribute(options, option.name, option.value);
      options.close("close options");
    }
    const ParameterTable table(info.config);
    Hdf5Object digests = create_group(file, digests_name);
    for (std::size_t i = 0; i < (info.moments ? section_names.size() : 1); ++i) {
      create_u64_dataset(digests, section_names[i], std::ssize(table.entries())).close("close the digests");
      Hdf5Object section = create_group(file, section_names[i]);
      for (const Parameter& p : table.entries())
        create_f32_dataset(section, p.name, p.shape).close("close " + p.name);
      section.close(fmt::format("close {}", section_names[i]));
    }
    digests.close("close the digests");
    file.close("complete the structure of " + path);
  });
}

void write_checkpoint(const std::string& path, Stream& stream, const Shard& shard)
{
  or_remove_temporary(path, [&] {
    Hdf5Object file = open_hdf5(temporary_name(path), H5F_ACC_RDWR);
    Digests digests = read_digests(file);
    for_each_block(file, shard,
                   [&](const StoredTensor& tensor, const std::vector<Hdf5Slab>& slabs, const Tensor& host,
                       const Tensor& device) {
                     stream.copy(host, device);
                     stream.synchronise();
                     const std::span<const float> block(host.data<float>(),
                                                        static_cast<std::size_t>(host.elements()));
                     for (const Hdf5Slab& slab : slabs) {
                       digests[tensor.section].at(tensor.number) += digest_of(slab, block, tensor.shape);
                       write_slab(tensor.dataset, slab, block.data());
                     }
                   });
    write_digests(file, digests);
    file.close("write a shard to " + path);
  });
}

void commit_checkpoint(const std::string& path)
{
  or_remove_temporary(path, [&] { check_written(temporary_name(path)); });
  commit_sealed(path, checkpoint_kind);
}

// ---- Reading ---------------------------------------------------------------------------------------------------

namespace {

/// Throws Error unless the group @p name holds the tensors of @p table and nothing else.
void check_section(const Hdf5Object& file, const char* name, const ParameterTable& table)
{
  const Hdf5Object section = open_group(file, name);
  std::set<std::string_view> known;
  for (const Parameter& p : table.entries()) {
    known.insert(p.name);
    const std::string called = fmt::format("{}/{}", name, p.name);
    const Hdf5Object dataset = open_plain_dataset(section, p.name);
    check(holds_f32(dataset), called + " is not f32");
    const Shape shape = shape_of(dataset);
    check(shape == p.shape, fmt::format("{} has the shape {}, not {}", called, shape.text(), p.shape.text()));
  }
  for (const std::string& member : members(section))
    check(known.contains(member), fmt::format("{}/{} is not a tensor of its model", name, member));
}

CheckpointInfo checked_info(const std::string& path)
{
  const Hdf5Object file = open_hdf5(path);
  CheckpointInfo info = read_info(file);
  const std::vector<std::string> tensors = members(open_group(file, section_names[0]));
  // Counted before a table of as many layers as the file claims is made.
  const std::int64_t without_blocks = info.config.architecture == Architecture::bert ? 14 : 4;
  const std::int64_t of_experts = info.config.expert_blocks() * (4 * info.config.experts.count - 3);
  const std::int64_t expected = without_blocks + 12 * info.config.layers + of_experts;
  check(std::ssize(tensors) == expected, fmt::format("it holds {} tensors, but a model of {} layers has {}",
                                                     tensors.size(), info.config.layers, expected));
  const ParameterTable table(info.config);
  for (std::size_t i = 0; i < (info.moments ? section_names.size() : 1); ++i)
    check_section(file, section_names[i], table);
  return info;
}

}  // namespace

CheckpointInfo check_checkpoint(const std::string& path, const std::string& asked)
{
  const FileRequest said{
      .asked = asked,
      .remedy = "A checkpoint is made by a run with --checkpoint=FILE.h5 (and --checkpoint-every=STEPS)."};
  check_seal(path, checkpoint_kind, said);
  try {
    return checked_info(path);
  } catch (const std::exception& error) {
    throw UserError(fmt::format("{} is not a complete checkpoint: {}.", said.asked, error.what()), said.remedy);
  }
}

ModelConfig checkpoint_sizes(const std::string& path)
{
  return read_info(open_hdf5(path)).config;
}

void read_checkpoint(const std::string& path, Stream& stream, const Shard& shard)
{
  const Hdf5Object file = open_hdf5(path);
  for_each_block(file, shard,
                 [&](const StoredTensor& tensor, const std::vector<Hdf5Slab>& slabs, const Tensor& host,
                     const Tensor& device) {
                   for (const Hdf5Slab& slab : slabs) read_slab(tensor.dataset, slab, host.data<float>());
                   stream.copy(device, host);
                   stream.synchronise();
                 });
}

}  // namespace rankwise
