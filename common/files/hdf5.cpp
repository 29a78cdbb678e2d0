#include "common/files/hdf5.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"

namespace rankwise {

namespace {

constexpr std::size_t longest_text = 1 << 16;  // maximum bytes of a text attribute

/// The type of a text attribute of @p size bytes.
Hdf5Object text_type(std::size_t size)
{
  Hdf5Object type(H5Tcopy(H5T_C_S1), H5Tclose, "make a text type");
  check_hdf5(H5Tset_size(type.id(), std::max<std::size_t>(size, 1)), "size a text type");
  check_hdf5(H5Tset_cset(type.id(), H5T_CSET_UTF8), "choose UTF-8");
  return type;
}

void write_scalar(const Hdf5Object& object, const std::string& name, hid_t type, const void* value)
{
  const std::string doing = fmt::format("write attribute {}", name);
  const Hdf5Object space(H5Screate(H5S_SCALAR), H5Sclose, doing);
  Hdf5Object attribute(H5Acreate2(object.id(), name.c_str(), type, space.id(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                       doing);
  check_hdf5(H5Awrite(attribute.id(), type, value), doing);
  attribute.close(doing);
}

/// The attribute @p name of @p object, which must hold one value.
Hdf5Object open_scalar(const Hdf5Object& object, const std::string& name, const std::string& doing)
{
  Hdf5Object attribute(H5Aopen(object.id(), name.c_str(), H5P_DEFAULT), H5Aclose, doing);
  const Hdf5Object space(H5Aget_space(attribute.id()), H5Sclose, doing);
  check(H5Sget_simple_extent_npoints(space.id()) == 1, doing + ": it does not hold one value");
  return attribute;
}

/// Adds a name to a vector of names, as HDF5's iterators call it.
template <class Info>
herr_t keep_name(hid_t, const char* name, const Info*, void* names)
{
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

}  // namespace

Hdf5Object::Hdf5Object(hid_t id, Close closer, std::string_view doing, SourceLocation where)
    : id_(check_hdf5(id, doing, where)), close_(closer), doing_(doing)
{
}

Hdf5Object::Hdf5Object(Hdf5Object&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)),
      close_(std::exchange(other.close_, nullptr)),
      doing_(std::move(other.doing_))
{
}

Hdf5Object& Hdf5Object::operator=(Hdf5Object&& other) noexcept
{
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  std::swap(doing_, other.doing_);
  return *this;
}

Hdf5Object::~Hdf5Object()
{
  // MPI_Finalize closes HDF5, so the identifier may be invalid already.
  if (close_ == nullptr || H5Iis_valid(id_) <= 0) return;
  if (std::uncaught_exceptions() > 0)
    close_(id_);
  else
    close(doing_ + " and close it");  // an exception ends the program: destructors are noexcept
}

void Hdf5Object::close(std::string_view doing, SourceLocation where)
{
  const hid_t id = std::exchange(id_, H5I_INVALID_HID);
  if (const Close closer = std::exchange(close_, nullptr)) check_hdf5(closer(id), doing, where);
}

std::int64_t check_hdf5(std::int64_t status, std::string_view doing, SourceLocation where)
{
  if (status < 0) throw Error(fmt::format("cannot {}: {}", doing, hdf5_cause()), where);
  return status;
}

std::string hdf5_cause()
{
  std::string cause;
  const auto keep_first = [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
    if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &cause);
  // For system errors keep the file name and the reason, but not the time and the memory addresses.
  if (const std::size_t time = cause.find("time = "), name = cause.find("filename = ");
      time < name && name != cause.npos)
    cause.erase(time, name - time);
  return cause.substr(0, cause.find(", buf = "));
}

namespace {

/// Stops HDF5 from printing its error stack.
void quiet_hdf5()
{
  check_hdf5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "stop HDF5 from printing");
}

/// File access properties: without HDF5's own locks.
Hdf5Object access_properties(const std::string& doing)
{
  Hdf5Object properties(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, doing);
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERS_MAJOR == 1 && H5_VERS_MINOR == 12 && H5_VERS_RELEASE == 0)
  check_hdf5(H5Pset_file_locking(properties.id(), false, true), doing);
#endif
  return properties;
}

}  // namespace

Hdf5Object open_hdf5(const std::string& path, unsigned flags)
{
  quiet_hdf5();
  const std::string doing = "open " + path;
  std::error_code error;  // opening a pipe would wait for a writer
  check(!std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error),
        fmt::format("cannot {}: it is not a file", doing));
  return {H5Fopen(path.c_str(), flags, access_properties(doing).id()), H5Fclose, doing};
}

Hdf5Object create_hdf5(const std::string& path, std::int64_t user_block)
{
  quiet_hdf5();
  const std::string doing = "create " + path;
  const Hdf5Object properties(H5Pcreate(H5P_FILE_CREATE), H5Pclose, doing);
  check_hdf5(H5Pset_userblock(properties.id(), static_cast<hsize_t>(user_block)), doing);
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties.id(), access_properties(doing).id()), H5Fclose, doing};
}

bool has_attribute(const Hdf5Object& object, const std::string& name)
{
  return check_hdf5(H5Aexists(object.id(), name.c_str()), "look for attribute " + name) > 0;
}

void write_attribute(const Hdf5Object& object, const std::string& name, const std::string& text)
{
  write_scalar(object, name, text_type(text.size()).id(), text.c_str());
}

void write_attribute(const Hdf5Object& object, const std::string& name, std::int64_t value)
{
  write_scalar(object, name, H5T_NATIVE_INT64, &value);
}

std::string read_text_attribute(const Hdf5Object& object, const std::string& name)
{
  const std::string doing = fmt::format("read attribute {}", name);
  const Hdf5Object attribute = open_scalar(object, name, doing);
  const Hdf5Object type(H5Aget_type(attribute.id()), H5Tclose, doing);
  check(H5Tget_class(type.id()) == H5T_STRING, doing + ": it is not text");
  if (H5Tis_variable_str(type.id()) > 0) {  // as h5py writes it
    char* text = nullptr;
    check_hdf5(H5Aread(attribute.id(), type.id(), &text), doing);
    std::string out = text == nullptr ? "" : text;
    check_hdf5(H5free_memory(text), doing);
    return out;
  }
  const std::size_t size = H5Tget_size(type.id());
  check(size <= longest_text, doing + ": it is too long");
  std::string out(size, '\0');
  check_hdf5(H5Aread(attribute.id(), type.id(), out.data()), doing);
  return out.substr(0, out.find('\0'));
}

std::int64_t read_integer_attribute(const Hdf5Object& object, const std::string& name)
{
  const std::string doing = fmt::format("read attribute {}", name);
  const Hdf5Object attribute = open_scalar(object, name, doing);
  const Hdf5Object type(H5Aget_type(attribute.id()), H5Tclose, doing);
  check(H5Tget_class(type.id()) == H5T_INTEGER, doing + ": it is not an integer");
  std::int64_t value = 0;
  check_hdf5(H5Aread(attribute.id(), H5T_NATIVE_INT64, &value), doing);
  return value;
}

std::vector<std::string> attribute_names(const Hdf5Object& object)
{
  std::vector<std::string> names;
  check_hdf5(H5Aiterate2(object.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, keep_name<H5A_info_t>, &names),
             "list attributes");
  return names;
}

// ---- Groups and datasets ----------------------------------------------------------------------------------------------

namespace {

/// Throws Error unless @p name is an object in this file, not a link to another file.
void check_hard_link(const Hdf5Object& parent, const std::string& name, const std::string& doing)
{
  check(check_hdf5(H5Lexists(parent.id(), name.c_str(), H5P_DEFAULT), doing) > 0, doing + ": it is missing");
  H5L_info_t info{};
  check_hdf5(H5Lget_info(parent.id(), name.c_str(), &info, H5P_DEFAULT), doing);
  check(info.type == H5L_TYPE_HARD, doing + ": it is a link to something else");
}

/// Throws Error unless all elements of @p dataset are stored uncompressed in its own file.
void check_plain(const Hdf5Object& dataset, const std::string& doing)
{
  const Hdf5Object properties(H5Dget_create_plist(dataset.id()), H5Pclose, doing);
  const H5D_layout_t layout = H5Pget_layout(properties.id());
  check(layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED, doing + ": it is neither contiguous nor chunked");
  if (layout == H5D_CONTIGUOUS)
    check(check_hdf5(H5Pget_external_count(properties.id()), doing) == 0, doing + ": it is stored in another file");
  const auto filters = check_hdf5(H5Pget_nfilters(properties.id()), doing);
  for (unsigned i = 0; i < static_cast<unsigned>(filters); ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    const auto filter = H5Pget_filter2(properties.id(), i, &flags, &values, nullptr, 0, nullptr, &config);
    check(check_hdf5(filter, doing) == H5Z_FILTER_FLETCHER32, doing + ": it is compressed");
  }
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, doing);
  const Hdf5Object type(H5Dget_type(dataset.id()), H5Tclose, doing);
  const auto elements = static_cast<hsize_t>(check_hdf5(H5Sget_simple_extent_npoints(space.id()), doing));
  const hsize_t element_bytes = H5Tget_size(type.id()), stored_bytes = H5Dget_storage_size(dataset.id());
  check(element_bytes > 0 && elements <= stored_bytes / element_bytes, doing + ": not all of it is stored");
  const Hdf5Object file(H5Iget_file_id(dataset.id()), H5Fclose, doing);
  hsize_t file_bytes = 0;
  check_hdf5(H5Fget_filesize(file.id(), &file_bytes), doing);
  check(stored_bytes <= file_bytes, doing + ": its file is shorter than it");
}

/// Selects a rectangle in a space of one or two dimensions.
void select(const Hdf5Object& space, const std::array<std::int64_t, 2>& at,
            const std::array<std::int64_t, 2>& count, const std::string& doing)
{
  const auto dimensions = check_hdf5(H5Sget_simple_extent_ndims(space.id()), doing);
  check(dimensions == 2 || (dimensions == 1 && at[0] == 0 && count[0] == 1), doing + ": the shapes do not match");
  const std::array<hsize_t, 2> start{static_cast<hsize_t>(at[0]), static_cast<hsize_t>(at[1])};
  const std::array<hsize_t, 2> size{static_cast<hsize_t>(count[0]), static_cast<hsize_t>(count[1])};
  const auto skipped = 2 - dimensions;  // a vector has no row dimension
  check_hdf5(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data() + skipped, nullptr, size.data() + skipped,
                                 nullptr),
             doing);
}

/// The selections of a rectangle in memory and in the dataset.
struct Selection {
  Hdf5Object file, memory;

  Selection(const Hdf5Object& dataset, const Hdf5Slab& slab, const std::string& doing)
      : file(H5Dget_space(dataset.id()), H5Sclose, doing)
  {
    const std::array<hsize_t, 2> block{static_cast<hsize_t>(slab.block[0]), static_cast<hsize_t>(slab.block[1])};
    memory = Hdf5Object(H5Screate_simple(2, block.data(), nullptr), H5Sclose, doing);
    select(file, slab.at, slab.count, doing);
    select(memory, slab.at_in_block, slab.count, doing);
  }
};

/// Creates a contiguous dataset and allocates it in the file.
/// @param filled  when HDF5 writes zeros first; H5D_FILL_TIME_IFSET, its default: never, as no value is set.
Hdf5Object create_dataset(const Hdf5Object& parent, const std::string& name, hid_t type, const Shape& shape,
                          H5D_fill_time_t filled)
{
  const std::string doing = "create dataset " + name;
  std::array<hsize_t, 2> extents{};
  check(shape.rank() == 1 || shape.rank() == 2, doing + ": it has neither one nor two dimensions");
  for (int i = 0; i < shape.rank(); ++i) extents[static_cast<std::size_t>(i)] = static_cast<hsize_t>(shape[i]);
  const Hdf5Object space(H5Screate_simple(shape.rank(), extents.data(), nullptr), H5Sclose, doing);
  const Hdf5Object properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, doing);
  check_hdf5(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY), doing);
  check_hdf5(H5Pset_fill_time(properties.id(), filled), doing);
  check_hdf5(H5Pset_obj_track_times(properties.id(), false), doing);  // the same numbers make the same bytes
  return {H5Dcreate2(parent.id(), name.c_str(), type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
          H5Dclose, doing};
}

}  // namespace

Hdf5Object create_group(const Hdf5Object& parent, const std::string& name)
{
  return {H5Gcreate2(parent.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
          "create group " + name};
}

Hdf5Object open_group(const Hdf5Object& parent, const std::string& name)
{
  const std::string doing = "open group " + name;
  check_hard_link(parent, name, doing);
  return {H5Gopen2(parent.id(), name.c_str(), H5P_DEFAULT), H5Gclose, doing};
}

std::vector<std::string> members(const Hdf5Object& group)
{
  std::vector<std::string> names;
  check_hdf5(H5Literate(group.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, keep_name<H5L_info_t>, &names),
             "list a group");
  return names;
}

Hdf5Object create_f32_dataset(const Hdf5Object& parent, const std::string& name, const Shape& shape)
{
  return create_dataset(parent, name, H5T_IEEE_F32LE, shape, H5D_FILL_TIME_NEVER);
}

Hdf5Object create_u64_dataset(const Hdf5Object& parent, const std::string& name, std::int64_t count)
{
  return create_dataset(parent, name, H5T_STD_U64LE, {count}, H5D_FILL_TIME_IFSET);
}

void write_u64(const Hdf5Object& dataset, std::span<const std::uint64_t> values)
{
  const std::string doing = "write integers";
  check(shape_of(dataset) == Shape{std::ssize(values)}, doing + ": the dataset has another length");
  check_hdf5(H5Dwrite(dataset.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), doing);
  note_progress();
}

std::vector<std::uint64_t> read_u64(const Hdf5Object& dataset)
{
  const std::string doing = "read integers";
  const Shape shape = shape_of(dataset);
  check(shape.rank() == 1, doing + ": the dataset is not one-dimensional");
  std::vector<std::uint64_t> values(static_cast<std::size_t>(shape[0]));
  check_hdf5(H5Dread(dataset.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), doing);
  note_progress();
  return values;
}

Hdf5Object open_plain_dataset(const Hdf5Object& parent, const std::string& name)
{
  const std::string doing = "open dataset " + name;
  check_hard_link(parent, name, doing);
  Hdf5Object dataset(H5Dopen2(parent.id(), name.c_str(), H5P_DEFAULT), H5Dclose, doing);
  check_plain(dataset, doing);
  return dataset;
}

Shape shape_of(const Hdf5Object& dataset)
{
  const std::string doing = "ask for a shape";
  const Hdf5Object space(H5Dget_space(dataset.id()), H5Sclose, doing);
  const auto dimensions = check_hdf5(H5Sget_simple_extent_ndims(space.id()), doing);
  check(dimensions <= 2, fmt::format("a dataset has {} dimensions", dimensions));
  std::array<hsize_t, 2> extents{};
  check_hdf5(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr), doing);
  const std::array<std::int64_t, 2> shape{static_cast<std::int64_t>(extents[0]),
                                          static_cast<std::int64_t>(extents[1])};
  if (dimensions == 0) return {};
  return dimensions == 1 ? Shape{shape[0]} : Shape{shape[0], shape[1]};
}

bool holds_f32(const Hdf5Object& dataset)
{
  const Hdf5Object type(H5Dget_type(dataset.id()), H5Tclose, "ask for a type");
  return H5Tequal(type.id(), H5T_IEEE_F32LE) > 0 || H5Tequal(type.id(), H5T_IEEE_F32BE) > 0;
}

void write_slab(const Hdf5Object& dataset, const Hdf5Slab& slab, const float* block)
{
  const std::string doing = "write to a dataset";
  const Selection s(dataset, slab, doing);
  check_hdf5(H5Dwrite(dataset.id(), H5T_NATIVE_FLOAT, s.memory.id(), s.file.id(), H5P_DEFAULT, block), doing);
  note_progress();
}

void read_slab(const Hdf5Object& dataset, const Hdf5Slab& slab, float* block)
{
  const std::string doing = "read from a dataset";
  const Selection s(dataset, slab, doing);
  check_hdf5(H5Dread(dataset.id(), H5T_NATIVE_FLOAT, s.memory.id(), s.file.id(), H5P_DEFAULT, block), doing);
  note_progress();
}

}  // namespace rankwise
