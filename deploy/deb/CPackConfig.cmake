# cpack's settings for the Debian package; deploy/deb.sh lays out STAGE, and says VERSION and OUT.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME recurve)
set(CPACK_PACKAGE_VERSION "$ENV{VERSION}")
set(CPACK_PACKAGE_FILE_NAME recurve)  # cpack wants one; the package's own name is Debian's
set(CPACK_PACKAGE_CONTACT "Recurve <recurve@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "gRPC and HTTP inference server for recurrent language models")
set(CPACK_PACKAGE_DESCRIPTION "Serves checkpoints of xLSTM, Mamba, GLA, RWKV-7 and others as the Hugging Face Hub has them: with sessions, over gRPC, OpenAI's API and the Open Inference Protocol.")
set(CPACK_PACKAGE_DIRECTORY "$ENV{OUT}")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{STAGE}" /)
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_SET_DESTDIR OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE "$ENV{ARCHITECTURE}")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# All libraries but glibc's are in the package.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= $ENV{GLIBC}), passwd | systemd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # xz takes forty seconds to be a quarter smaller
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "$ENV{CONTROL}/conffiles" "$ENV{CONTROL}/postinst" "$ENV{CONTROL}/prerm" "$ENV{CONTROL}/postrm")
