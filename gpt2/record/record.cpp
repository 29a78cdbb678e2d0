#include "gpt2/record/record.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/hdf5.hpp"
#include "common/files/sealed_file.hpp"
#include "gpt2/parameter_table.hpp"

namespace rankwise {

namespace {

static_assert(sizeof(RecordEntry) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<RecordEntry>);
constexpr std::size_t entry_words = sizeof(RecordEntry) / sizeof(std::uint64_t);
constexpr FileKind record_kind{record_seal, 2, "a record of a run"};
constexpr const char* remedy = "Name a file that a lesson has written with --record=FILE.";

/// "3 backward h.0.ln_1.weight sequences 0+4 rows 0+1 columns 0+64 device 1": the dataset with the values of an entry.
std::string dataset_name(const Record& record, const RecordEntry& e)
{
  return fmt::format("{} {} {} sequences {}+{} rows {}+{} columns {}+{} device {}", e.step, name_of(e.phase),
                     record.names[static_cast<std::size_t>(e.tensor)], e.sequences.first, e.sequences.count,
                     e.rows.first, e.rows.count, e.columns.first, e.columns.count, e.device);
}

void write_values(const Hdf5Object& group, const Record& record, std::span<const RecordedValues> values)
{
  for (const RecordedValues& part : values) {
    const std::int64_t rows = part.entry.rows.count,
                       columns = std::ssize(part.values) / std::max<std::int64_t>(rows, 1);
    const std::string name = dataset_name(record, part.entry);
    Hdf5Object dataset = create_f32_dataset(group, name, {rows, columns});
    write_slab(dataset, {.count = {rows, columns}, .block = {rows, columns}}, part.values.data());
    dataset.close("write " + name);
  }
}

/// Writes all but the steps to the temporary file of a record.
void begin_record(const std::string& path, const Record& record)
{
  Hdf5Object file = create_hdf5(temporary_name(path), seal_bytes);
  const nlohmann::json run{{"devices", record.devices}, {"exact", record.exact},
                           {"rounded", record.rounded}, {"global_batch", record.global_batch},
                           {"sizes", record.sizes},     {"dropout", record.dropout}};
  write_attribute(file, "run", json_text(run));
  write_attribute(file, "names", fmt::format("{}", fmt::join(record.names, "\n")));
  write_attribute(file, "words of an entry", static_cast<std::int64_t>(entry_words));
  create_group(file, "entries").close("create entries of " + path);
  file.close("write " + path);
}

/// Adds a step to the temporary file of a record.
void add_step(const std::string& path, const Record& record, std::span<const RecordEntry> step,
              std::span<const RecordedValues> values)
{
  Hdf5Object file = open_hdf5(temporary_name(path), H5F_ACC_RDWR);
  {
    const Hdf5Object group = open_group(file, "entries");
    Hdf5Object dataset = create_u64_dataset(group, fmt::format("step {:08}", step.front().step),
                                            std::ssize(step) * std::int64_t{entry_words});
    write_u64(dataset, {reinterpret_cast<const std::uint64_t*>(step.data()), step.size() * entry_words});
    dataset.close("write entries of " + path);
  }
  if (!values.empty()) {
    const std::vector<std::string> groups = members(file);
    const bool first = std::ranges::find(groups, "values") == groups.end();
    write_values(first ? create_group(file, "values") : open_group(file, "values"), record, values);
  }
  file.close("write " + path);
}

/// Adds the entries of a step, as they are in the file.
void append_entries(std::vector<RecordEntry>& entries, const std::vector<std::uint64_t>& words)
{
  check(words.size() % entry_words == 0, "its last entry is incomplete");
  const std::size_t before = entries.size();
  entries.resize(before + words.size() / entry_words);
  if (!words.empty())
    std::memcpy(static_cast<void*>(&entries[before]), words.data(), words.size() * sizeof(words[0]));
}

}  // namespace

std::string name_of(StepPhase phase)
{
  constexpr std::array names{"forward", "backward", "gradients summed", "loss and norm", "update"};
  const auto number = static_cast<std::size_t>(phase);
  return number < names.size() ? names[number] : "";
}

std::vector<std::string> record_names(const ModelConfig& config)
{
  std::vector<std::string> names{"loss", "gradient norm", "learning rate", "embedding"};
  for (std::int64_t i = 0; i < config.layers; ++i)
    for (const char* what : {"ln_1", "attn.q_k_v", "attn.heads", "attn", "attn.stream", "ln_2", "mlp.inner",
                             "mlp.hidden", "mlp", "mlp.stream"})
      names.push_back(fmt::format("h.{}.{}", i, what));
  names.insert(names.end(), {"ln_f", "logits", "wte.weight of the head"});
  const ParameterTable table(config);
  for (const char* prefix : {"", "first moment of ", "second moment of "})
    for (const Parameter& p : table.entries()) names.push_back(prefix + p.name);
  return names;
}

void write_step(const std::string& path, const Record& record, bool first, std::span<const RecordEntry> step,
                std::span<const RecordedValues> values)
{
  create_temporary(path);
  or_remove_temporary(path, [&] {
    if (first)
      begin_record(path, record);
    else
      std::filesystem::copy_file(path, temporary_name(path), std::filesystem::copy_options::overwrite_existing);
    add_step(path, record, step, values);
  });
  commit_sealed(path, record_kind);
}

Record read_record(const std::string& path)
{
  check_seal(path, record_kind, {path, remedy});
  try {
    const Hdf5Object file = open_hdf5(path);
    Record record;
    const nlohmann::json run = parse_json(read_text_attribute(file, "run"));
    record.devices = run.at("devices");
    record.sizes = run.at("sizes").get<std::vector<std::int64_t>>();
    record.exact = run.at("exact"), record.rounded = run.at("rounded");
    record.global_batch = run.at("global_batch"), record.dropout = run.at("dropout");
    record.names = split(read_text_attribute(file, "names"), '\n');
    check(read_integer_attribute(file, "words of an entry") == entry_words, "its entries have another size");
    const Hdf5Object steps = open_group(file, "entries");
    for (const std::string& step : members(steps))
      append_entries(record.entries, read_u64(open_plain_dataset(steps, step)));
    for (const RecordEntry& e : record.entries)
      check(e.step >= 0 && !name_of(e.phase).empty() && e.tensor >= 0 && e.tensor < std::ssize(record.names),
            "an entry has a step, a phase or a tensor that does not exist");
    return record;
  } catch (const std::exception& error) {
    throw UserError(fmt::format("{} is not a record of a run: {}.", path, error.what()), remedy);
  }
}

}  // namespace rankwise
