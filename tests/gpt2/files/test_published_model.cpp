// PublishedModel of gpt2/files/weights.hpp: what tests/gpt2/test_weights.py cannot see from outside.

#include <filesystem>
#include <hdf5.h>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/memory/device.hpp"
#include "gpt2/files/weights.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

int opened = 0;  // times that an HDF5 file was opened; once when it is complete, to be read again

/// A file of such a model, whose elements are numbered throughout, in the order of the table.
void write_model(const std::string& path, const ModelConfig& config)
{
  const ParameterTable table(config);
  std::vector<SafetensorsDeclaration> declarations;
  for (const Parameter& p : table.entries())
    for (const PublishedTensor& tensor : published_tensors(config.architecture, p))
      declarations.push_back({tensor.name, tensor.shape()});
  SafetensorsWriter writer(path, declarations, {});
  std::int64_t number = 0;
  for (const Parameter& p : table.entries()) {
    for (const PublishedTensor& tensor : published_tensors(config.architecture, p)) {
      std::vector<float> elements(static_cast<std::size_t>(tensor.elements()));
      for (std::int64_t i = 0; i < tensor.elements(); ++i)
        elements[static_cast<std::size_t>(i)] = static_cast<float>(number + tensor.place(i));
      writer.write(elements);
    }
    number += p.shape.elements();
  }
  writer.close();
}

}  // namespace

extern "C" hid_t __real_H5Fopen(const char* name, unsigned flags, hid_t access);
extern "C" hid_t __wrap_H5Fopen(const char* name, unsigned flags, hid_t access)
{
  ++opened;
  return __real_H5Fopen(name, flags, access);
}

TEST_CASE("PublishedModel: the file is not opened again for each tensor")
{
  const ScratchFolder folder;
  const std::string from = folder / "a.safetensors", to = folder / "a.h5";
  for (const std::int64_t layers : {1, 30}) {
    write_model(from,
                {.name = "tiny", .layers = layers, .heads = 1, .channels = 4, .context = 8, .vocabulary = 16});
    opened = 0;
    PublishedModel(from, 1).save(to);
    CHECK(opened == 1 + 1);
  }
}

TEST_CASE("PublishedModel: a tensor that is cut between two blocks arrives whole, and padding is zero")
{
  const ScratchFolder folder;
  const std::string from = folder / "a.safetensors", to = folder / "a.h5";
  ModelConfig config{.name = "cut", .layers = 1, .heads = 2, .channels = 96, .context = 8};
  for (const Architecture architecture : {Architecture::gpt2, Architecture::bert}) {
    config.architecture = architecture;
    // A block of 2^22 elements ends in the token embedding; in q, k, v of the BERT, which is transposed.
    config.vocabulary = architecture == Architecture::bert ? 43601 : 50001;
    write_model(from, config);
    opened = 0;
    PublishedModel(from, 2).save(to);
    CHECK(opened == 2 + 1);

    const ParameterTable table(config);
    std::vector<float> elements(static_cast<std::size_t>(table.elements()));
    read_checkpoint(to, *make_cpu_device()->make_stream(),
                    {table, {0, table.elements()}, Tensor(std::span(elements), {table.elements()}), {}, {}});
    float number = 0;
    std::int64_t wrong = 0;
    for (const Parameter& p : table.entries())
      for (std::int64_t i = 0; i < p.elements.count; ++i) {
        const float expected = i < p.shape.elements() ? number++ : 0;
        wrong += elements[static_cast<std::size_t>(p.elements.first + i)] == expected ? 0 : 1;
      }
    CHECK(wrong == 0);
  }
}
