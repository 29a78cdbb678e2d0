// Writes the values that a run has recorded with --record-values as safetensors, for programs that do not read HDF5.
//
// Sample runs:  build/data/record_values record.h5 values.safetensors
//
// Each part of a tensor keeps the name that it has in the record:
// "STEP PHASE NAME sequences FIRST+COUNT rows FIRST+COUNT columns FIRST+COUNT device R".

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/hdf5.hpp"
#include "common/files/named_files.hpp"
#include "common/messages/program.hpp"
#include "gpt2/files/safetensors.hpp"
#include "gpt2/record/record.hpp"

namespace rankwise {

namespace {

/// Refuses a command line whose files cannot be read or written, and returns the locks of the file to write.
std::vector<FileLock> check_arguments(const std::vector<std::string>& files)
{
  if (files.size() != 2)
    throw UserError(fmt::format("a record and a file to write are needed; {} files given.", files.size()),
                    "build/data/record_values RECORD.h5 VALUES.safetensors");
  const std::vector<NamedFile> named{{.path = files[0], .asked = files[0], .use = FileUse::read},
                                     {.path = files[1], .asked = files[1], .use = FileUse::replace}};
  check_files(named);
  if (read_record(files[0]).entries.empty() || members(open_hdf5(files[0])).size() < 2)
    throw UserError(fmt::format("{} has no values.", files[0]),
                    "Record them: add --record-values='*' to the options of the run.");
  return lock_files(named);
}

/// Writes all values of a record; returns their number.
std::int64_t write_values(const std::string& from, const std::string& to)
{
  const Hdf5Object file = open_hdf5(from), group = open_group(file, "values");
  const std::vector<std::string> names = members(group);
  std::vector<SafetensorsDeclaration> declared;
  std::int64_t elements = 0;
  for (const std::string& name : names) {
    const Shape shape = shape_of(open_plain_dataset(group, name));
    check(shape.rank() == 2, fmt::format("{}: {} has not two dimensions", from, name));
    declared.push_back({name, {shape[0], shape[1]}});
    elements += shape.elements();
  }
  SafetensorsWriter writer(to, declared);
  for (const SafetensorsDeclaration& tensor : declared) {
    const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    read_slab(open_plain_dataset(group, tensor.name), {.count = {rows, columns}, .block = {rows, columns}},
              values.data());
    writer.write(values);
  }
  writer.close();
  return elements;
}

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  std::vector<FileLock> locks;
  OptionTable table("record_values",
                    "Writes recorded values as safetensors: record_values RECORD.h5 VALUES.safetensors");
  return run_file_program(
      argc, argv, table, [&](const std::vector<std::string>& files) { locks = check_arguments(files); },
      [&](const std::vector<std::string>& files) {
        const std::vector<FileLock> held = std::move(locks);  // an exception removes their files
        const std::string count = group_digits(write_values(files[0], files[1]));
        check_system(print_text(stdout, fmt::format("{}: {} values\n", files[1], count)), "print the result");
        return exit_success;
      });
}
