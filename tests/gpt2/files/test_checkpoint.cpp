// gpt2/files/checkpoint.hpp: a checkpoint does not depend on the number of ranks that wrote it, or on their layout.

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "common/files/hdf5.hpp"
#include "common/files/output_file.hpp"
#include "common/memory/device.hpp"
#include "common/program/in_turn.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

/// A vocabulary of 13 is padded to 16; 4 parts are possible.
const ModelConfig config{"tiny", 2, 4, 16, 8, 13, {}};
const CheckpointInfo info{.config = config, .step = 7, .updates = 7, .options = {{"seed", "1"}}};

/// The scratch folder of rank 0, on all ranks, until the last of them is done with it.
class SharedFolder {
 public:
  SharedFolder()
  {
    path_.resize(1000);
    check_mpi(MPI_Bcast(path_.data(), 1000, MPI_CHAR, 0, MPI_COMM_WORLD), "telling the folder");
    path_.resize(path_.find('\0'));
  }
  ~SharedFolder()
  {
    if (std::uncaught_exceptions() == 0) MPI_Barrier(MPI_COMM_WORLD);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + name; }

 private:
  ScratchFolder own_;
  std::string path_ = own_ / "";
};

/// Element @p element of the whole tensor @p number in section 0, 1 or 2.
float value_of(int section, int number, std::int64_t element)
{
  return static_cast<float>(section + 1) * 1e6F + static_cast<float>(number) * 1e4F + static_cast<float>(element);
}

/// The flat vector of @p table in section @p section, padding zero.
std::vector<float> flat_vector(const ParameterTable& table, int section)
{
  std::vector<float> flat(static_cast<std::size_t>(table.elements()));
  for (const Parameter& p : table.entries()) {
    const std::int64_t columns = p.shape[p.shape.rank() - 1], stored_columns = p.stored[p.stored.rank() - 1];
    for (const Slab& slab : table.slabs(p))
      for (std::int64_t r = 0; r < slab.rows.count; ++r)
        for (std::int64_t c = 0; c < slab.columns.count; ++c)
          flat[static_cast<std::size_t>(p.elements.first + (slab.stored_row + r) * stored_columns +
                                        slab.stored_column + c)] =
              value_of(section, p.number, (slab.rows.first + r) * columns + slab.columns.first + c);
  }
  return flat;
}

/// All three flat vectors of a table, and ranges of them.
struct Flat {
  ParameterTable table;
  std::vector<float> values[3];

  explicit Flat(ParameterTable t) : table(std::move(t))
  {
    for (int s = 0; s < 3; ++s) values[s] = flat_vector(table, s);
  }
  Tensor slice(int s, Range range) { return Tensor(std::span(values[s]), {table.elements()}).slice(range); }
  Shard shard(Range range) { return {table, range, slice(0, range), slice(1, range), slice(2, range)}; }
};

/// Makes a checkpoint in which each rank writes what @p write writes.
void make_checkpoint(const std::string& path, const std::function<void(Stream&)>& write)
{
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  if (world().rank() == 0) create_checkpoint(path, info);
  in_turn(world(), [&] { write(*stream); });
  if (world().rank() == 0) commit_checkpoint(path);
  check_mpi(MPI_Barrier(MPI_COMM_WORLD), "waiting for the checkpoint");
}

/// The file that one writer of the whole model writes.
std::string written_by_one(const std::string& path)
{
  Flat whole{ParameterTable(config)};
  make_checkpoint(path, [&](Stream& stream) {
    if (world().rank() == 0) write_checkpoint(path, stream, whole.shard({0, whole.table.elements()}));
  });
  return read_file(path);
}

/// The elements of @p range that a tensor-parallel rank writes: replicated tensors are written by the first.
std::vector<Range> owned_by(const ParameterTable& table, bool first_part, Range range)
{
  std::vector<Range> owned;
  for (const Parameter& p : table.entries())
    if (first_part || p.split != rankwise::Split::none) owned.push_back(intersect(p.elements, range));
  return owned;
}

/// Whether each of @p pieces ranges of @p table is read as it should be.
void check_read(const std::string& path, const ParameterTable& table, std::int64_t pieces)
{
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  Flat expected(table), found(table);
  for (std::vector<float>& values : found.values) values.assign(values.size(), -1);
  const Partition partition(table.elements(), pieces);
  for (std::int64_t i = 0; i < pieces; ++i) read_checkpoint(path, *stream, found.shard(partition.shard(i)));
  for (int s = 0; s < 3; ++s) CHECK((found.values[s] == expected.values[s]));
}

}  // namespace

TEST_CASE("in_turn: rank after rank, one at a time")
{
  const SharedFolder folder;
  const std::string path = folder / "turns";
  for (int round = 0; round < 20; ++round)
    in_turn(world(), [&] { make_file(path, read_file(path) + static_cast<char>('0' + world().rank())); });
  std::string expected;
  for (int round = 0; round < 20; ++round)
    expected += std::string("0123").substr(0, static_cast<std::size_t>(world().ranks()));
  CHECK(read_file(path) == expected);
}

TEST_CASE("checkpoint: datasets have the tensors' natural shapes and hold their elements")
{
  const SharedFolder folder;
  const std::string path = folder / "model.h5";
  written_by_one(path);
  const CheckpointInfo found = check_checkpoint(path, path);
  CHECK(found.step == 7);
  CHECK(found.updates == 7);
  CHECK(found.moments);
  CHECK(found.config.vocabulary == 13);
  REQUIRE(found.options.size() == 1);
  CHECK(found.options[0].name == "seed");
  CHECK(found.options[0].value == "1");

  const Hdf5Object file = open_hdf5(path);
  const ParameterTable table(config);
  const char* const sections[] = {"parameters", "first_moments", "second_moments"};
  for (int s = 0; s < 3; ++s)
    for (const Parameter& p : table.entries()) {
      const Hdf5Object dataset = open_plain_dataset(open_group(file, sections[s]), p.name);
      CHECK(shape_of(dataset) == p.shape);
      std::vector<float> values(static_cast<std::size_t>(p.shape.elements())), expected;
      check_hdf5(H5Dread(dataset.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "read");
      for (std::int64_t i = 0; i < p.shape.elements(); ++i) expected.push_back(value_of(s, p.number, i));
      CHECK((values == expected));
    }
}

TEST_CASE(
    "checkpoint: ranks that own ranges of the flat vector write the same bytes as one, for any number to read")
{
  const SharedFolder folder;
  const std::string path = folder / "model.h5", one = written_by_one(folder / "one.h5");
  Flat whole{ParameterTable(config)};
  const Range mine = Partition(whole.table.elements(), world().ranks()).shard(world().rank());
  make_checkpoint(path, [&](Stream& stream) { write_checkpoint(path, stream, whole.shard(mine)); });
  CHECK((read_file(path) == one));
  for (const std::int64_t pieces : {1, 2, 3, 4, 7, 1000}) check_read(path, whole.table, pieces);
}

TEST_CASE("checkpoint: parts of divided layers and runs of units write the same bytes too")
{
  const SharedFolder folder;
  const std::string path = folder / "model.h5", one = written_by_one(folder / "one.h5");
  const std::int64_t units = unit_count(config);
  for (const int count : {1, 2, 4})
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, units / 2}) {
      std::vector<ParameterTable> tables;
      for (int i = 0; i < count; ++i) {
        tables.emplace_back(config, Part{i, count}, Range{0, cut});
        tables.emplace_back(config, Part{i, count}, Range{cut, units - cut});
      }
      make_checkpoint(path, [&](Stream& stream) {
        for (std::size_t i = 0; i < tables.size(); ++i) {
          Flat flat(tables[i]);
          const Partition thirds(flat.table.elements(), 3);
          for (std::int64_t t = 0; t < 3; ++t)
            if ((static_cast<std::int64_t>(i) + t) % world().ranks() == world().rank())
              for (const Range& range : owned_by(flat.table, i < 2, thirds.shard(t)))
                write_checkpoint(path, stream, flat.shard(range));
        }
      });
      CHECK((read_file(path) == one));
      for (const ParameterTable& table : tables) check_read(path, table, 3);
      check_mpi(MPI_Barrier(MPI_COMM_WORLD), "reading the checkpoint");
    }
}

TEST_CASE(
    "checkpoint: elements that are missing, written twice or lost on the way are noticed before it gets its name")
{
  const SharedFolder folder;
  const std::string path = folder / "model.h5", one = written_by_one(path);
  if (world().rank() != 0) return;
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  Flat whole{ParameterTable(config)};
  const std::int64_t n = whole.table.elements();
  const auto refused = [&](const std::vector<Range>& written, const std::function<void()>& before_commit) {
    create_checkpoint(path, info);
    for (const Range& range : written) write_checkpoint(path, *stream, whole.shard(range));
    before_commit();
    CHECK_THROWS_WITH(commit_checkpoint(path), Contains("does not hold what was to be written to it"));
    CHECK((read_file(path) == one));
  };
  const auto nothing = [] {};
  refused({{0, n - 1}}, nothing);
  refused({{0, n}, {n / 2, 1}}, nothing);
  refused({{0, n}}, [&] {
    const Hdf5Object file = open_hdf5(temporary_name(path), H5F_ACC_RDWR);
    const float lost = 0;
    write_slab(open_plain_dataset(open_group(file, "second_moments"), "ln_f.bias"),
               {.count = {1, 1}, .at = {0, 1}, .block = {1, 1}, .at_in_block = {0, 0}}, &lost);
  });
}
