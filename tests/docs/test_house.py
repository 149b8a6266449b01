"""The rules of the tree: names, folders, files and functions."""

import house


def test_classes_share_a_name_only_for_a_reason():
    shared = house.shared_classes()
    assert shared.keys() == house.SHARED_NAMES.keys()


def test_packages_that_share_a_class_name_are_not_imported_together():
    imports = house.imports()
    for name, (first, second, *more) in house.shared_classes().items():
        assert not more, name
        importers = [module for module, targets in imports.items() if {first, second} <= targets]
        assert not importers, name


def test_small_files_with_one_importer_are_few():
    assert len(house.small_files()) <= house.MAX_SMALL


def test_no_file_is_long():
    assert house.long_files() == []


def test_no_folder_is_wide():
    assert house.wide_folders() == {}


def test_long_functions_have_a_reason():
    assert house.long_functions().keys() == house.LONG_FUNCTIONS.keys()
    assert len(house.LONG_FUNCTIONS) <= 5
