// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/errors.h"

#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// The classes live in gpuscope/errors.py, where they carry docstrings and fields; here C++ finds them by name.
void raise(const char* name, const py::tuple& arguments) {
  const py::object type = py::module_::import("gpuscope.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}

void raise_library_error(const char* name, const base::LibraryError& error) {
  raise(name, py::make_tuple(error.what(), error.call(), error.code()));
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    } catch (const base::CudaError& error) {
      raise_library_error("CudaError", error);
    } catch (const base::CuptiError& error) {
      raise_library_error("CuptiError", error);
    } catch (const base::NvmlError& error) {
      raise_library_error("NvmlError", error);
    } catch (const base::CorruptTrace& error) {
      raise("CorruptTrace", py::make_tuple(error.what(), error.path(), error.offset()));
    } catch (const base::NotAvailable& error) {
      raise("NotAvailable", py::make_tuple(error.what()));
    } catch (const base::InvalidArgument& error) {
      raise("InvalidArgument", py::make_tuple(error.what()));
    } catch (const base::Error& error) {
      raise("GpuscopeError", py::make_tuple(error.what()));
    }
  });
}

}  // namespace gpuscope::bindings
