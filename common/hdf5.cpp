#include "common/hdf5.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/error.hpp"

namespace rankwise {

namespace {

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

}  // namespace

Hdf5Object::Hdf5Object(hid_t id, Close closer, std::string_view doing, SourceLocation where)
    : id_(check_hdf5(id, doing, where)), close_(closer)
{
}

Hdf5Object::Hdf5Object(Hdf5Object&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(std::exchange(other.close_, nullptr))
{
}

Hdf5Object& Hdf5Object::operator=(Hdf5Object&& other) noexcept
{
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Hdf5Object::~Hdf5Object()
{
  // MPI_Finalize closes all of HDF5, so the identifier may be gone already.
  if (close_ != nullptr && H5Iis_valid(id_) > 0) close_(id_);
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
  std::erase(cause, '\n');  // the time stamp in the midst of it ends with one
  return cause;
}

void quiet_hdf5()
{
  check_hdf5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "stop HDF5 from printing");
}

Hdf5Object open_hdf5(const std::string& path)
{
  quiet_hdf5();
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, "open " + path};
}

Hdf5Object create_hdf5(const std::string& path)
{
  quiet_hdf5();
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose, "create " + path};
}

bool is_hdf5(const std::string& path)
{
  quiet_hdf5();
  return H5Fis_hdf5(path.c_str()) > 0;
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
  std::string out(H5Tget_size(type.id()), '\0');
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

}  // namespace rankwise
